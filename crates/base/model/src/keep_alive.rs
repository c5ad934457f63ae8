//! What an idle worker does until the next invocation, or until it is reaped, and how it is asked to end: the table
//! `[functions.NAME.keep_alive]`. The behaviours and ends are those of Table 2 of *Demystifying Serverless Costs on Public Platforms*.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::checks::{KeyProblem, in_range, one_of};
use crate::choices::{Reuse, TemplateMode, words};
use crate::policy::Policy;
use crate::scale::ScaleConfig;

words! {
    /// What an idle worker does.
    Behaviour {
        /// It runs on, with the function's CPU limit (Azure).
        Run = "run",
        /// It gets no CPU time until the next invocation (AWS Lambda).
        Freeze = "freeze",
        /// It gets 0.01 CPU until the next invocation (Cloud Run).
        Throttle = "throttle",
        /// It ends at once. Only the template stays.
        Template = "template",
    }
}

words! {
    /// How a worker is asked to end between invocations.
    Stop {
        /// It gets SIGTERM, and time to end (AWS Lambda with extensions; Azure gives no time).
        Sigterm = "sigterm",
        /// It is killed without a signal that it can handle (Cloud Run).
        Kill = "kill",
    }
}

/// The table as the user wrote it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct KeepAliveSpec {
    /// `run`, `freeze`, `throttle` or `template`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behaviour: Option<String>,
    /// For `freeze` and `throttle`: a worker that was idle for this long rests, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_s: Option<f64>,
    /// For `freeze`: the memory of a worker that was idle for this long is reclaimed, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclaim_after_s: Option<f64>,
    /// `sigterm` or `kill`. Absent: as usual for the runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<String>,
    /// For `sigterm`: what still runs after this long is killed, seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_s: Option<f64>,
}

/// What an idle worker does, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeepAlive {
    /// What it does.
    pub behaviour: Behaviour,
    /// Idle for this long, it is frozen or throttled.
    #[serde(rename = "after_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub after: Duration,
    /// Idle for this long, a frozen worker's memory is reclaimed.
    #[serde(rename = "reclaim_after_s", with = "crate::seconds")]
    #[cfg_attr(feature = "openapi", schema(value_type = f64))]
    pub reclaim_after: Duration,
    /// How it is asked to end. Absent: as usual for the runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Stop>,
    /// From SIGTERM to SIGKILL. Absent unless it gets SIGTERM.
    #[serde(
        rename = "grace_s",
        default,
        skip_serializing_if = "Option::is_none",
        with = "crate::seconds::option"
    )]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<f64>))]
    pub grace: Option<Duration>,
}

/// How a worker ends between invocations, if its function says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Farewell {
    /// At once.
    Kill,
    /// It gets SIGTERM, and is killed after this time.
    Sigterm(Duration),
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            behaviour: Behaviour::Run,
            after: AFTER,
            reclaim_after: RECLAIM_AFTER,
            stop: None,
            grace: None,
        }
    }
}

impl KeepAlive {
    /// Whether this is what a function without the table has.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// How a worker ends between invocations. `None`: as usual for its runtime.
    #[must_use]
    pub fn farewell(&self) -> Option<Farewell> {
        self.stop.map(|stop| match stop {
            Stop::Kill => Farewell::Kill,
            Stop::Sigterm => Farewell::Sigterm(self.grace.unwrap_or(GRACE)),
        })
    }

    /// How a worker rests. `None`: it does not.
    #[must_use]
    pub fn rest(&self) -> Option<Rest> {
        match self.behaviour {
            Behaviour::Run | Behaviour::Template => None,
            Behaviour::Freeze => Some(Rest::Freeze),
            Behaviour::Throttle => Some(Rest::Throttle),
        }
    }
}

/// How a worker rests between invocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// It gets no CPU time.
    Freeze,
    /// It gets [`THROTTLED_CPU_MILLI`].
    Throttle,
}

/// CPU of a throttled worker, thousandths of a CPU: what the paper measured on Cloud Run (§3.3).
pub const THROTTLED_CPU_MILLI: u32 = 10;

/// From SIGTERM to SIGKILL, if the function does not say: what Lambda gives extensions in its `Shutdown` phase.
pub const GRACE: Duration = Duration::from_secs(2);

/// The same for a server: what Cloud Run gives it.
pub const GRACE_OF_SERVERS: Duration = Duration::from_secs(10);

/// What the table depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Around<'a> {
    /// Why the runtime's workers cannot rest.
    pub(crate) no_rest: Option<&'static str>,
    /// What gets no signals.
    pub(crate) no_signals: Option<&'static str>,
    /// The worker is an HTTP server.
    pub(crate) is_server: bool,
    /// Workers are forked from a template.
    pub(crate) forks: bool,
    pub(crate) template: TemplateMode,
    pub(crate) reuse: Reuse,
    pub(crate) scale: &'a ScaleConfig,
    /// `scale.idle_s` is in the manifest.
    pub(crate) idle_given: bool,
}

impl KeepAliveSpec {
    /// # Errors
    /// The first key that is wrong or without effect.
    pub(crate) fn check(&self, around: Around<'_>) -> Result<KeepAlive, KeyProblem> {
        let word = self.behaviour.as_deref();
        let behaviour = one_of(word, Behaviour::Run, Behaviour::ALL)
            .map_err(|problem| ("keep_alive.behaviour", problem))?;
        let without_effect = |key, takers: &str| {
            let problem = format!(
                "has no effect with behaviour = \"{}\", only with {takers}; leave it out",
                behaviour.as_str()
            );
            Err((key, problem))
        };
        let rests = matches!(behaviour, Behaviour::Freeze | Behaviour::Throttle);
        if self.after_s.is_some() && !rests {
            return without_effect("keep_alive.after_s", "\"freeze\" and \"throttle\"");
        }
        if self.reclaim_after_s.is_some() && behaviour != Behaviour::Freeze {
            return without_effect("keep_alive.reclaim_after_s", "\"freeze\"");
        }
        check_around(behaviour, around)?;
        let (stop, grace) = self.check_stop(around)?;
        let after = in_range(
            self.after_s.unwrap_or(AFTER.as_secs_f64()),
            AFTER_S_MIN,
            S_MAX,
        )
        .map_err(|problem| ("keep_alive.after_s", problem))?;
        let default = RECLAIM_AFTER.as_secs_f64().max(after);
        let reclaim_after = in_range(self.reclaim_after_s.unwrap_or(default), after, S_MAX)
            .map_err(|problem| ("keep_alive.reclaim_after_s", problem))?;
        Ok(KeepAlive {
            behaviour,
            after: Duration::from_secs_f64(after),
            reclaim_after: Duration::from_secs_f64(reclaim_after),
            stop,
            grace,
        })
    }

    fn check_stop(
        &self,
        around: Around<'_>,
    ) -> Result<(Option<Stop>, Option<Duration>), KeyProblem> {
        if self.stop.is_none() && self.grace_s.is_none() {
            return Ok((None, None));
        }
        let key = match self.stop {
            Some(_) => "keep_alive.stop",
            None => "keep_alive.grace_s",
        };
        if let Some(with) = around.no_signals {
            return Err((key, format!("has no effect with {with}; leave it out")));
        }
        let stop = one_of(self.stop.as_deref(), Stop::Sigterm, Stop::ALL)
            .map_err(|problem| ("keep_alive.stop", problem))?;
        if stop == Stop::Kill {
            return match self.grace_s {
                None => Ok((Some(stop), None)),
                Some(_) => Err((
                    "keep_alive.grace_s",
                    "has no effect with stop = \"kill\", only with \"sigterm\"; leave it out"
                        .to_owned(),
                )),
            };
        }
        let default = if around.is_server {
            GRACE_OF_SERVERS
        } else {
            GRACE
        };
        let grace = in_range(
            self.grace_s.unwrap_or(default.as_secs_f64()),
            0.0,
            GRACE_S_MAX,
        )
        .map_err(|problem| ("keep_alive.grace_s", problem))?;
        Ok((Some(stop), Some(Duration::from_secs_f64(grace))))
    }
}

/// Rejects behaviours that contradict other keys.
fn check_around(behaviour: Behaviour, around: Around<'_>) -> Result<(), KeyProblem> {
    let Around {
        no_rest,
        forks,
        template,
        reuse,
        scale,
        idle_given,
        ..
    } = around;
    let problem = match behaviour {
        Behaviour::Run => return Ok(()),
        _ if reuse == Reuse::Once => {
            "has no effect with reuse = \"once\": a worker ends with its invocation; leave it out"
        }
        Behaviour::Freeze | Behaviour::Throttle => match no_rest {
            Some(refusal) => refusal,
            None => return Ok(()),
        },
        Behaviour::Template if !forks || template == TemplateMode::Off => {
            "is \"template\", which needs workers that are forked from a template (runtime = \"python\", template = \"on\")"
        }
        Behaviour::Template if scale.min > 0 || scale.spare > 0 => {
            "is \"template\", which keeps no idle worker: remove scale.min and scale.spare, or choose \"freeze\""
        }
        Behaviour::Template if scale.policy != Policy::Demand => {
            "is \"template\", which keeps no idle worker: remove scale.policy, or choose \"freeze\""
        }
        Behaviour::Template if idle_given => {
            "is \"template\", which keeps no idle worker: remove scale.idle_s, or choose \"freeze\""
        }
        Behaviour::Template => return Ok(()),
    };
    Err(("keep_alive.behaviour", problem.to_owned()))
}

/// Long enough that a worker under steady load is not frozen between two invocations, and short beside `idle_s`.
const AFTER: Duration = Duration::from_millis(100);
const RECLAIM_AFTER: Duration = Duration::from_secs(10);
const AFTER_S_MIN: f64 = 0.01;
/// Less than a runtime has for its end and its cleaning (`pool.runtimes_clean_s`).
const GRACE_S_MAX: f64 = 10.0;
const S_MAX: f64 = 86_400.0;
