//! Triggers in descriptions and metrics.

use pilot_model::FunctionConfig;
use pilot_model::ports::TriggerControl;
use pilot_model::trigger::{TriggerInfo, TriggerState};

use super::*;

/// `known` has a schedule.
#[derive(Debug)]
pub(super) struct FakeTriggers;

impl TriggerControl for FakeTriggers {
    fn list(&self, function: Option<&FunctionName>) -> Vec<TriggerInfo> {
        let known: FunctionName = "known".parse().unwrap();
        let is_asked = function.is_none_or(|name| *name == known);
        let info = TriggerInfo {
            function: known,
            kind: "schedule".to_owned(),
            source: "* * * * * UTC".to_owned(),
            state: TriggerState::Active,
            lag_s: Some(2.6),
            waiting: None,
            received: 5,
            errors: 1,
            last_run_unix_ms: Some(1),
            next_run_unix_ms: Some(2),
            last_error: None,
            last_error_unix_ms: None,
        };
        is_asked.then_some(info).into_iter().collect()
    }

    fn check(&self, _: &FunctionConfig) -> Result<(), String> {
        Ok(())
    }
}

#[tokio::test]
async fn a_description_and_the_metrics_have_the_triggers() {
    let bench = Bench::new(AdminConfig::default());
    let (_, described) = bench.call("GET", "/_pilot/v1/functions/known", "").await;
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["triggers"][0]["type"], "schedule");
    assert_eq!(described["triggers"][0]["lag_s"], 2.6);
    let (_, metrics) = bench.call("GET", "/metrics", "").await;
    let labels = "function=\"known\",type=\"schedule\",source=\"* * * * * UTC\"";
    for line in [
        format!("pilot_trigger_lag_seconds{{{labels}}} 3"),
        format!("pilot_trigger_received_total{{{labels}}} 5"),
        format!("pilot_trigger_errors_total{{{labels}}} 1"),
    ] {
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    assert!(
        !metrics.contains("pilot_trigger_waiting{"),
        "it does not say"
    );
}
