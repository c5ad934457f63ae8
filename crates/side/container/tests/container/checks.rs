//! The list of checks.

use std::pin::Pin;

use crate::support::Stage;
use crate::{cleaning, contracts, ends, inputs, kills, times};

pub(crate) type Check = fn(Stage) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! checks {
    ($($module:ident :: $name:ident,)*) => {
        vec![$((stringify!($name), (|stage| Box::pin($module::$name(stage))) as Check),)*]
    };
}

pub(crate) fn all() -> Vec<(&'static str, Check)> {
    checks![
        contracts::an_image_that_is_not_there_is_named_with_what_to_do,
        contracts::a_program_gets_the_event_and_its_output_is_the_answer,
        contracts::a_program_that_fails_is_an_error_with_its_last_words,
        contracts::a_program_that_is_not_there_is_named,
        contracts::an_image_for_another_architecture_is_named,
        contracts::a_program_that_nobody_waits_for_is_ended,
        contracts::a_large_event_that_is_not_read_and_one_that_is_echoed,
        contracts::a_server_is_reached_and_told_its_port,
        contracts::a_server_is_asked_to_end_and_waited_for,
        contracts::a_runtime_api_client_serves,
        contracts::an_image_of_another_contract_fails_with_what_it_printed,
        contracts::memory_over_the_limit_is_out_of_memory,
        contracts::a_full_volume_is_told_to_who_filled_it_and_fills_nothing_else,
        contracts::a_read_only_root_and_a_smaller_volume_are_what_a_function_asked_for,
        contracts::secrets_are_files_in_memory_for_their_function_alone,
        contracts::containers_are_in_the_daemons_group_and_under_its_limit,
        contracts::a_container_sees_the_network_it_was_given,
        contracts::a_container_is_kept_from_the_credentials_of_its_machine,
        inputs::a_program_finds_the_paths_of_its_inputs_in_its_environment,
        inputs::a_server_gets_files_for_one_request_and_nothing_else,
        inputs::a_program_is_shown_an_input_while_it_runs,
        cleaning::a_cleaned_container_has_nothing_of_the_use_before,
        cleaning::a_root_function_leaves_nothing_either,
        cleaning::a_function_that_writes_to_its_image_is_not_reused_and_told_why,
        cleaning::process_1_cannot_be_tampered_with,
        cleaning::a_container_takes_another_versions_code,
        cleaning::limits_and_network_are_applied_to_a_live_container,
        cleaning::an_images_volume_is_cleaned_or_prevents_reuse,
        ends::a_dropped_container_is_removed_with_its_folder,
        ends::the_daemons_end_waits_for_containers_that_are_being_started,
        ends::a_start_that_nobody_waits_for_leaves_nothing,
        ends::a_container_killed_behind_the_daemons_back_is_noticed,
        ends::containers_of_a_killed_daemon_are_gone,
        ends::what_a_killed_daemon_left_is_swept_and_nothing_else,
        ends::containers_of_a_replaced_image_are_given_up,
        ends::an_engine_that_goes_away_and_comes_back_needs_no_restart,
        kills::a_daemon_killed_while_it_starts_a_container_leaves_nothing,
        kills::a_daemon_killed_while_it_cleans_a_container_leaves_nothing,
        kills::a_daemon_killed_while_it_evicts_a_container_leaves_nothing,
        times::a_cleaned_container_is_handed_over_in_time,
    ]
}
