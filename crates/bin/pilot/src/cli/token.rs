//! `pilot token`: makes, lists and revokes tokens.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use pilot_model::FunctionName;
use pilot_model::access::Role;
use pilot_model::api::{CreatedToken, TokenInfo, TokenRequest};

use super::client::Client;
use super::connection::command_for;
use super::output::{self, Align, Table};
use super::usage::not_empty;

/// The arguments of `pilot token`.
#[derive(Debug, Args)]
pub(super) struct TokenArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a token and print it. The daemon keeps only its hash, so it is not shown again
    Create(CreateArgs),
    /// List all tokens, without the tokens themselves
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Make a token invalid at once
    Revoke {
        /// The token's name
        #[arg(value_parser = not_empty)]
        name: String,
    },
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// A name for the token, shown in lists
    #[arg(value_parser = not_empty)]
    name: String,
    /// What it permits: invoke, deploy or admin; may be repeated
    #[arg(long = "role", value_name = "ROLE", required = true)]
    roles: Vec<Role>,
    /// Only for this function; may be repeated
    #[arg(long = "function", value_name = "NAME")]
    functions: Vec<FunctionName>,
    /// The owner of everything that it deploys; it can change only functions of this owner
    #[arg(long, value_name = "OWNER", value_parser = not_empty)]
    owner: Option<String>,
    /// Also make an access key, with which AWS clients sign their calls
    #[arg(long)]
    aws: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the subcommand.
pub(super) fn run(client: &Client, args: &TokenArgs) -> anyhow::Result<()> {
    match &args.what {
        What::Create(args) => create(client, args),
        What::List { json } => list(client, *json),
        What::Revoke { name } => {
            client.delete(&format!("{TOKENS}/{}", output::path_part(name)))?;
            output::print(&format!("{name}  revoked\n"))
        }
    }
}

fn create(client: &Client, args: &CreateArgs) -> anyhow::Result<()> {
    let request = TokenRequest {
        name: args.name.clone(),
        roles: args.roles.clone(),
        functions: args.functions.clone(),
        owner: args.owner.clone(),
        aws: args.aws,
    };
    let created: CreatedToken = client.post(TOKENS, &request)?;
    client.warn_of_unknown(&args.functions);
    print(&created, args.json).inspect_err(|_| {
        let name = &args.name;
        let revoke = command_for(Some(client.endpoint()), &format!("token revoke {name}"));
        output::note(&format!(
            "token '{name}' was created, but it could not be shown; revoke it: {revoke}"
        ));
    })
}

fn print(created: &CreatedToken, json: bool) -> anyhow::Result<()> {
    if json {
        return output::print_json(created);
    }
    output::note(
        "keep it: it is not shown again. Clients send it as PILOT_TOKEN or --token, in Authorization: Bearer, or as AWS_SESSION_TOKEN",
    );
    let mut text = format!("{}\n", created.token);
    if let Some(aws) = &created.aws {
        let _ = writeln!(text, "AWS_ACCESS_KEY_ID={}", aws.access_key_id);
        let _ = writeln!(text, "AWS_SECRET_ACCESS_KEY={}", aws.secret_access_key);
    }
    output::print(&text)
}

fn list(client: &Client, json: bool) -> anyhow::Result<()> {
    let tokens: Vec<TokenInfo> = client.fetch(TOKENS)?;
    if json {
        return output::print_json(&tokens);
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("ROLES", Align::Left),
        ("FUNCTIONS", Align::Left),
        ("OWNER", Align::Left),
        ("ACCESS KEY", Align::Left),
        ("STATE", Align::Left),
    ]);
    for token in &tokens {
        let grant = &token.grant;
        let roles: Vec<&str> = grant.roles.iter().map(|role| role.as_str()).collect();
        let functions: Vec<&str> = grant.functions.iter().map(FunctionName::as_str).collect();
        let functions = if functions.is_empty() {
            "all".to_owned()
        } else {
            functions.join(", ")
        };
        table.row(vec![
            grant.name.clone(),
            roles.join(", "),
            functions,
            grant.owner.clone().unwrap_or_default(),
            token.access_key_id.clone().unwrap_or_default(),
            match token.revoked {
                true => "revoked, not yet on the disk".to_owned(),
                false => "valid".to_owned(),
            },
        ]);
    }
    output::print(&table.render())
}

const TOKENS: &str = "/_pilot/v1/tokens";
