//! Lists where a table must be. Serde reads a list as a structure: its first value would be that of the structure's first key.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::misplaced;

/// What is wrong with the value of this key, which must be a table.
#[must_use]
pub fn list_for_table(key: &str, value: &DeValue<'_>) -> Option<String> {
    let list = value.as_array()?;
    let is_of_tables = list.iter().any(|one| one.get_ref().is_table());
    Some(match is_of_tables {
        true => format!("{key}: has two brackets, must be one table: [{key}]"),
        false => format!("{key}: is a list, must be a table of keys"),
    })
}

/// The first list of a manifest where a table must be, and where it begins in the text.
pub(super) fn first(document: &DeTable<'_>) -> Option<(usize, String)> {
    let layers = tables(document.get("layers"));
    let layers = layers.filter_map(|(name, layer)| of(&format!("layers.{name}"), layer));
    let functions = tables(document.get("functions"));
    let functions = functions.filter_map(|(name, function)| {
        let named = format!("functions.{name}");
        of(&named, function).or_else(|| {
            tables(Some(function))
                .filter(|(key, value)| value.get_ref().is_array() && misplaced::is_table(key))
                .find_map(|(key, value)| of(&format!("{named}.{key}"), value))
        })
    });
    layers.chain(functions).next()
}

fn of(key: &str, value: &Spanned<DeValue<'_>>) -> Option<(usize, String)> {
    Some((value.span().start, list_for_table(key, value.get_ref())?))
}

fn tables<'a, 'i>(
    value: Option<&'a Spanned<DeValue<'i>>>,
) -> impl Iterator<Item = (&'a str, &'a Spanned<DeValue<'i>>)> {
    let table = value.and_then(|value| value.get_ref().as_table());
    let entries = table.into_iter().flat_map(DeTable::iter);
    entries.map(|(key, value)| (key.get_ref().as_ref(), value))
}

#[cfg(test)]
mod tests {
    use super::super::Manifest;

    fn problem_of(text: &str) -> String {
        Manifest::parse(text, "pilot.toml").unwrap_err().to_string()
    }

    #[test]
    fn a_list_where_a_table_must_be_is_refused() {
        for (text, wanted) in [
            (
                "[[functions.a]]\nmemory_mb = 1\n",
                "pilot.toml:1: functions.a: has two brackets, must be one table: [functions.a]",
            ),
            (
                "[functions.a]\n[[functions.a.scale]]\nmin = 1\n",
                "pilot.toml:2: functions.a.scale: has two brackets, must be one table: [functions.a.scale]",
            ),
            (
                "[functions.a]\nscale = [1, 2]\n",
                "pilot.toml:2: functions.a.scale: is a list, must be a table of keys",
            ),
            (
                "[functions.a]\ncors = [[\"*\"]]\n",
                "pilot.toml:2: functions.a.cors: is a list, must be a table of keys",
            ),
            (
                "layers.b = [\"x\"]\n[functions.a]\n",
                "pilot.toml:1: layers.b: is a list, must be a table of keys",
            ),
        ] {
            assert_eq!(problem_of(text), wanted);
        }
        let lists = "[functions.a]\ninvokes = [\"b\"]\n[[functions.a.triggers]]\ntype = \"schedule\"\ncron = \"30 6 * * *\"\n";
        assert!(Manifest::parse(lists, "pilot.toml").is_ok());
    }
}
