use super::*;
use crate::spec::FunctionSpec;

fn checked(toml: &str) -> Result<Vec<TriggerConfig>, String> {
    let toml = format!("handler = \"a.b\"\n{toml}");
    let spec: FunctionSpec = toml::from_str(&toml).map_err(|error| error.to_string())?;
    let config = spec.check(&"f".parse().unwrap());
    config
        .map(|config| config.triggers)
        .map_err(|error| error.to_string())
}

#[test]
fn every_kind_has_a_source_and_its_defaults() {
    let triggers = checked(
        "[[triggers]]\ntype = \"schedule\"\ncron = \"0 3  * * *\"\n\
         [[triggers]]\ntype = \"folder\"\npath = \"/srv/in/\"\nsuffix = \".csv\"\n\
         [[triggers]]\ntype = \"sqs\"\nqueue = \"https://sqs.example.com/1/jobs\"\n\
         [[triggers]]\ntype = \"redis\"\nconnection = \"main\"\nstream = \"orders\"\n\
         [[triggers]]\ntype = \"mqtt\"\nconnection = \"broker\"\ntopic = \"sensors/+/#\"\n",
    )
    .unwrap();
    let sources: Vec<String> = triggers.iter().map(TriggerConfig::source).collect();
    assert_eq!(
        sources,
        [
            "0 3 * * * UTC",
            "/srv/in/*.csv",
            "https://sqs.example.com/1/jobs",
            "main/orders pilot-f",
            "broker/sensors/+/#"
        ]
    );
    let stored = serde_json::to_string(&triggers).unwrap();
    let read: Vec<TriggerConfig> = serde_json::from_str(&stored).unwrap();
    assert_eq!(read, triggers);
}

#[test]
fn a_wrong_trigger_says_which_one_and_what_is_allowed() {
    for (toml, problem) in [
        (
            "type = \"schedule\"\ncron = \"nonsense\"",
            "functions.f.triggers: trigger 1: cron is \"nonsense\"",
        ),
        (
            "type = \"schedule\"\ncron = \"* * * * *\"\nmissed = \"al\"",
            "did you mean \"all\"?",
        ),
        ("type = \"folder\"\npath = \"in\"", "must begin with /"),
        ("type = \"folder\"\npath = \"/a/../b\"", "no . or .."),
        (
            "type = \"sqs\"\nqueue = \"https://u@host/1/q\"",
            "must be the queue's URL",
        ),
        (
            "type = \"sqs\"\nqueue = \"https://host/1/q\"\nbatch_size = 0",
            "batch_size is 0, must be from 1 to 100",
        ),
        (
            "type = \"mqtt\"\nconnection = \"c\"\ntopic = \"a/#/b\"",
            "topic is \"a/#/b\": + must be a whole level",
        ),
        (
            "type = \"mqtt\"\nconnection = \"c\"\ntopic = \"$share/g\"",
            "a shared subscription is $share/GROUP/FILTER",
        ),
        (
            "type = \"mqtt\"\nconnection = \"c\"\ntopic = \"\"",
            "must have 1 to",
        ),
        (
            "type = \"mqtt\"\nconnection = \"c\"\ntopic = \"a\"\nqos = 3",
            "qos is 3, must be from 0 to 2",
        ),
        (
            "type = \"redis\"\nconnection = \"c\"\nstream = \"s\"\nclaim_idle_s = 5",
            "longer than the function's timeout_s",
        ),
        ("type = \"kafka\"", "kafka"),
        (
            "type = \"folder\"\npath = \"/a\"\n[[triggers]]\ntype = \"folder\"\npath = \"/a/\"",
            "trigger 2: it has the same source as trigger 1",
        ),
    ] {
        let found = checked(&format!("[[triggers]]\n{toml}")).unwrap_err();
        assert!(found.contains(problem), "{toml}: {found}");
    }
    let found =
        checked("interface = \"asgi\"\n[[triggers]]\ntype = \"schedule\"\ncron = \"* * * * *\"");
    assert!(found.unwrap_err().contains("takes events"));
}
