//! When a certificate can be used: from the latest begin to the earliest end in its chain. It is only told, and refuses nothing: the
//! clock of this machine may be wrong, and clients decide.

use std::time::SystemTime;

use pilot_model::calendar::{Utc, unix_ms};
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The time in which every certificate of a chain is valid, seconds since 1970-01-01.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    begins: i64,
    pub(super) ends: i64,
}

impl Validity {
    /// `None`: a certificate cannot be read. The TLS library has read the first one.
    pub(super) fn of(chain: &[CertificateDer<'_>]) -> Option<Self> {
        chain
            .iter()
            .map(|one| {
                let (_, read) = X509Certificate::from_der(one).ok()?;
                let times = read.validity();
                Some(Self {
                    begins: times.not_before.timestamp(),
                    ends: times.not_after.timestamp(),
                })
            })
            .reduce(|all, one| {
                let (all, one) = (all?, one?);
                Some(Self {
                    begins: all.begins.max(one.begins),
                    ends: all.ends.min(one.ends),
                })
            })?
    }

    /// In words.
    ///
    /// # Errors
    /// Clients refuse it now, or will soon; in words.
    pub(crate) fn tell(self, now: SystemTime) -> Result<String, String> {
        let now = i64::try_from(unix_ms(now) / 1000).unwrap_or(i64::MAX);
        if now < self.begins {
            return Err(format!("not valid before {}", date(self.begins)));
        }
        let (ends, left) = (date(self.ends), self.ends.saturating_sub(now));
        let days = match left / DAY_S {
            1 => "1 day".to_owned(),
            days => format!("{days} days"),
        };
        match left {
            ..=0 => Err(format!("ended on {ends}, and clients refuse it")),
            1..SOON_S => Err(format!("ends in {days}, on {ends}")),
            _ => Ok(format!("ends in {days}, on {ends}")),
        }
    }
}

fn date(unix_s: i64) -> String {
    let unix_s = u64::try_from(unix_s).unwrap_or_default();
    let utc = Utc::of_unix_ms(unix_s.saturating_mul(1000));
    let (hour, minute) = (utc.hour, utc.minute);
    format!(
        "{}-{:02}-{:02} {hour:02}:{minute:02} UTC",
        utc.year, utc.month, utc.day
    )
}

const DAY_S: i64 = 24 * 3600;
/// ACME clients renew 30 days before the end; when so little is left, the renewal has failed.
const SOON_S: i64 = 14 * DAY_S;

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    fn certificate(begins: (i32, u8, u8), ends: (i32, u8, u8)) -> CertificateDer<'static> {
        let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
        parameters.not_before = date_time_ymd(begins.0, begins.1, begins.2);
        parameters.not_after = date_time_ymd(ends.0, ends.1, ends.2);
        let key = KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn the_earliest_end_of_a_chain_counts() {
        let chain = [
            certificate((2024, 1, 1), (2030, 1, 1)),
            certificate((2025, 1, 1), (2026, 3, 1)),
        ];
        let found = Validity::of(&chain).unwrap();
        let at = |days: u64| found.tell(UNIX_EPOCH + Duration::from_secs(days * 86_400));
        // 2025-01-01 is day 20,089, 2026-03-01 is day 20,513.
        assert_eq!(
            at(20_088).unwrap_err(),
            "not valid before 2025-01-01 00:00 UTC"
        );
        assert_eq!(
            at(20_493).unwrap(),
            "ends in 20 days, on 2026-03-01 00:00 UTC"
        );
        assert_eq!(
            at(20_512).unwrap_err(),
            "ends in 1 day, on 2026-03-01 00:00 UTC"
        );
        assert!(at(20_513).unwrap_err().starts_with("ended on 2026-03-01"));
        assert_eq!(Validity::of(&[CertificateDer::from(vec![1, 2, 3])]), None);
    }
}
