//! Triggers in descriptions and metrics.

use super::*;

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
