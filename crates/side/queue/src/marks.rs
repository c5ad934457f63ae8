//! What triggers remember, in the store of the queue: so an invocation and the mark that it was accepted are one transaction, and a crash
//! can neither lose a run nor repeat it.

use pilot_model::ports::Mark;
use rusqlite::{Connection, Result, params};

/// Changes a mark.
pub(crate) fn set(connection: &Connection, mark: &Mark) -> Result<()> {
    let Mark { scope, key, value } = mark;
    match value {
        Some(value) => connection
            .prepare_cached(
                "INSERT INTO marks (scope, key, value) VALUES (?1, ?2, ?3)
                 ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value",
            )?
            .execute(params![scope, key, value])?,
        None => connection
            .prepare_cached("DELETE FROM marks WHERE scope = ?1 AND key = ?2")?
            .execute(params![scope, key])?,
    };
    Ok(())
}

/// Forgets the marks of the scopes that begin so, except those of some.
pub(crate) fn forget(connection: &Connection, beginning: &str, kept: &[String]) -> Result<()> {
    let mut scopes = connection
        .prepare_cached("SELECT DISTINCT scope FROM marks WHERE scope >= ?1 AND scope < ?2")?;
    // No character comes after it.
    let end = format!("{beginning}\u{10FFFF}");
    let scopes = scopes.query_map([beginning, end.as_str()], |row| row.get::<_, String>(0))?;
    let scopes = scopes.collect::<Result<Vec<_>>>()?;
    for scope in scopes.iter().filter(|scope| !kept.contains(scope)) {
        connection
            .prepare_cached("DELETE FROM marks WHERE scope = ?1")?
            .execute([scope])?;
    }
    Ok(())
}

/// Forgets the marks of these functions. A scope begins with the function's name, which has no slash.
pub(crate) fn forget_functions(
    connection: &Connection,
    is_gone: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut scopes = connection.prepare_cached("SELECT DISTINCT scope FROM marks")?;
    let scopes = scopes.query_map([], |row| row.get::<_, String>(0))?;
    let scopes = scopes.collect::<Result<Vec<_>>>()?;
    let of_function = |scope: &String| scope.split_once('/').is_some_and(|(name, _)| is_gone(name));
    for scope in scopes.into_iter().filter(of_function) {
        connection
            .prepare_cached("DELETE FROM marks WHERE scope = ?1")?
            .execute([scope])?;
    }
    Ok(())
}

/// The marks of a scope.
pub(crate) fn read(connection: &Connection, scope: &str) -> Result<Vec<(String, String)>> {
    let mut statement =
        connection.prepare_cached("SELECT key, value FROM marks WHERE scope = ?1")?;
    let rows = statement.query_map([scope], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}
