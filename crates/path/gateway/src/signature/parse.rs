//! Reads signatures from the header `Authorization` and from the query of presigned URLs.

use http::HeaderMap;
use percent_encoding::percent_decode_str;
use pilot_model::calendar::Utc;

use super::{Signature, SignatureError};
use crate::headers;

pub(super) const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// `AWS4-HMAC-SHA256 Credential=KEY/DATE/REGION/SERVICE/aws4_request, SignedHeaders=host;x-amz-date, Signature=…`
pub(super) fn header(authorization: &str, from: &HeaderMap) -> Result<Signature, SignatureError> {
    let rest = authorization.strip_prefix(ALGORITHM).unwrap_or_default();
    if !rest.starts_with(' ') {
        return Err(incomplete("the algorithm must be AWS4-HMAC-SHA256"));
    }
    let (mut credential, mut signed, mut given) = (None, None, None);
    for part in rest.split(',') {
        let slot = match part.trim().split_once('=') {
            Some(("Credential", value)) => (&mut credential, value),
            Some(("SignedHeaders", value)) => (&mut signed, value),
            Some(("Signature", value)) => (&mut given, value),
            _ => {
                return Err(incomplete(
                    "Authorization has a part that is none of Credential, SignedHeaders, Signature",
                ));
            }
        };
        if slot.0.replace(slot.1).is_some() {
            return Err(incomplete("Authorization has a part twice"));
        }
    }
    let date = from.get(headers::AMZ_DATE).ok_or_else(|| {
        incomplete("Authorization header requires existence of an 'X-Amz-Date' header")
    })?;
    let missing =
        |name: &str| incomplete(&format!("Authorization header requires '{name}' parameter"));
    signature(
        credential.ok_or_else(|| missing("Credential"))?,
        signed.ok_or_else(|| missing("SignedHeaders"))?,
        given.ok_or_else(|| missing("Signature"))?,
        &headers::text(date),
        None,
    )
}

/// The parameters of a presigned URL.
pub(super) fn query(query: &str) -> Result<Signature, SignatureError> {
    let value = |name: &str| {
        let mut values = query.split('&').filter_map(|pair| {
            let (key, value) = pair.split_once('=')?;
            (key == name).then(|| percent_decode_str(value).decode_utf8_lossy().into_owned())
        });
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(value),
            _ => Err(incomplete(&format!(
                "AWS query-string parameters must include one '{name}'"
            ))),
        }
    };
    if value("X-Amz-Algorithm")? != ALGORITHM {
        return Err(incomplete("the algorithm must be AWS4-HMAC-SHA256"));
    }
    let expires = value("X-Amz-Expires")?;
    let expires_s = expires
        .parse()
        .ok()
        .filter(|s| (1..=EXPIRES_MAX_S).contains(s));
    let expires_s =
        expires_s.ok_or_else(|| incomplete("X-Amz-Expires must be from 1 to 604800"))?;
    signature(
        &value("X-Amz-Credential")?,
        &value("X-Amz-SignedHeaders")?,
        &value("X-Amz-Signature")?,
        &value("X-Amz-Date")?,
        Some(expires_s),
    )
}

fn signature(
    credential: &str,
    signed: &str,
    given: &str,
    date: &str,
    expires_s: Option<u64>,
) -> Result<Signature, SignatureError> {
    let parts: Vec<&str> = credential.split('/').collect();
    let [access_key_id, day, region, _service, _terminator] = parts[..] else {
        return Err(incomplete(
            "Credential must have exactly 5 slash-delimited elements: keyid/date/region/service/term",
        ));
    };
    let unix_s = unix_s(date).ok_or_else(|| {
        incomplete("Date must be in ISO-8601 'basic format': YYYYMMDD'T'HHMMSS'Z'")
    })?;
    let signed: Vec<String> = signed.split(';').map(str::to_owned).collect();
    let is_sorted = signed.windows(2).all(|pair| pair[0] < pair[1]);
    let is_lower = signed
        .iter()
        .all(|name| !name.is_empty() && !name.bytes().any(|byte| byte.is_ascii_uppercase()));
    if !is_sorted || !is_lower {
        return Err(incomplete("SignedHeaders must be in lower case and sorted"));
    }
    let mut hash = [0; 32];
    hex::decode_to_slice(given, &mut hash)
        .map_err(|_| incomplete("Signature must be 64 hexadecimal digits"))?;
    Ok(Signature {
        access_key_id: access_key_id.to_owned(),
        scope: parts[1..].join("/"),
        day: day.to_owned(),
        region: region.to_owned(),
        date: date.to_owned(),
        unix_s,
        signed,
        given: hash,
        expires_s,
    })
}

pub(super) fn incomplete(problem: &str) -> SignatureError {
    SignatureError::Incomplete {
        problem: problem.to_owned(),
    }
}

/// `20260131T120000Z`
pub(super) fn amz_date(unix_s: u64) -> String {
    let utc = Utc::of_unix_ms(unix_s.saturating_mul(1000));
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        utc.year, utc.month, utc.day, utc.hour, utc.minute, utc.second
    )
}

/// The time of `20260131T120000Z`. `None`: it is not a time.
pub(super) fn unix_s(date: &str) -> Option<u64> {
    let bytes = date.as_bytes();
    if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let number = |from: usize, to: usize| -> Option<u64> {
        let digits = date.get(from..to)?;
        digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let unix_s = Utc {
        year: number(0, 4)?,
        month: number(4, 6)?,
        day: number(6, 8)?,
        hour: number(9, 11)?,
        minute: number(11, 13)?,
        second: number(13, 15)?,
        millisecond: 0,
    }
    .unix_s()?;
    // A day or an hour that does not exist would come back as another one.
    (amz_date(unix_s) == date).then_some(unix_s)
}

/// Seven days.
const EXPIRES_MAX_S: u64 = 604_800;
