use proptest::prelude::*;

use super::*;

fn code(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn found(files: &[(&str, &str)]) -> Option<Requirements> {
    find(code(files).path(), RequirementFiles::All).unwrap()
}

fn refusal(files: &[(&str, &str)]) -> String {
    find(code(files).path(), RequirementFiles::All)
        .unwrap_err()
        .to_string()
}

#[test]
fn code_without_either_file_requires_nothing() {
    assert_eq!(found(&[("app.py", "")]), None);
    assert_eq!(found(&[("requirements.txt", "\n# nothing\n")]), None);
    assert_eq!(
        found(&[("requirements.txt", "--index-url https://example.org\n")]),
        None
    );
}

#[test]
fn order_comments_and_spaces_do_not_count() {
    let one = found(&[(
        "requirements.txt",
        "six==1.16 # pinned\n\n numpy \\\n  >=1\n",
    )])
    .unwrap();
    let other = found(&[(
        "requirements.txt",
        "\u{feff}numpy >=1\r\nsix==1.16\r\nsix==1.16\n",
    )])
    .unwrap();
    assert_eq!(one, other);
    assert_eq!(one.lines, ["numpy >=1", "six==1.16"]);
}

#[test]
fn a_fragment_is_no_comment() {
    let one = found(&[(
        "requirements.txt",
        "x @ https://example.org/x.zip#sha256=1\n",
    )])
    .unwrap();
    assert_eq!(one.lines, ["x @ https://example.org/x.zip#sha256=1"]);
    assert!(!one.local);
}

#[test]
fn included_files_are_part_of_the_set() {
    let one = found(&[
        ("requirements.txt", "-r more/base.txt\n-c bounds.txt\nsix\n"),
        ("more/base.txt", "--requirement=deep.txt\n"),
        ("more/deep.txt", "numpy\n"),
        ("bounds.txt", "six<2\n"),
    ])
    .unwrap();
    assert_eq!(one.lines, ["numpy", "six"]);
    assert_eq!(one.constraints, ["six<2"]);
}

#[test]
fn a_project_table_will_do() {
    let text = "[project]\nname = \"x\"\ndependencies = [\"six\", \"numpy >= 1\"]\n";
    let one = found(&[("pyproject.toml", text)]).unwrap();
    assert_eq!(
        (one.file, one.lines),
        (
            "pyproject.toml",
            vec!["numpy >= 1".to_owned(), "six".to_owned()]
        )
    );
    assert_eq!(found(&[("pyproject.toml", "[tool.ruff]\n")]), None);
}

#[test]
fn requirements_txt_wins_over_pyproject() {
    let files = [
        ("requirements.txt", "six"),
        ("pyproject.toml", "[project]\ndependencies = [\"numpy\"]"),
    ];
    assert_eq!(found(&files).unwrap().lines, ["six"]);
}

#[test]
fn a_pyproject_beside_another_languages_code_does_not_count() {
    let pyproject = ("pyproject.toml", "[project]\ndependencies = [\"numpy\"]");
    let with = |files: &[(&str, &str)]| find(code(files).path(), RequirementFiles::Txt).unwrap();
    assert_eq!(with(&[pyproject, ("index.js", "")]), None);
    let both = with(&[pyproject, ("requirements.txt", "six")]).unwrap();
    assert_eq!(both.lines, ["six"]);
}

#[test]
fn a_pipfile_is_not_ignored_silently() {
    let pipfile = ("Pipfile", "[packages]\nrequests = \"*\"\n");
    assert!(refusal(&[pipfile]).contains("pipenv requirements > requirements.txt"));
    let both = [pipfile, ("requirements.txt", "six")];
    assert_eq!(found(&both).unwrap().lines, ["six"]);
    let tools = find(code(&[pipfile]).path(), RequirementFiles::Txt).unwrap();
    assert_eq!(tools, None);
}

#[test]
fn what_cannot_be_read_says_what_to_change() {
    assert!(refusal(&[("requirements.txt", "-r ../other.txt")]).contains("leads out of the code"));
    assert!(refusal(&[("requirements.txt", "-r gone.txt")]).contains("'gone.txt' cannot be read"));
    assert!(
        refusal(&[("requirements.txt", "-r requirements.txt")]).contains("included too deeply")
    );
    assert!(refusal(&[("requirements.txt", "-e .")]).contains("write . without -e"));
    assert!(refusal(&[("pyproject.toml", "[project")]).contains("is not TOML"));
    let dynamic = "[project]\ndynamic = [\"dependencies\"]\n";
    assert!(refusal(&[("pyproject.toml", dynamic)]).contains("put a requirements.txt beside it"));
    let poetry = "[tool.poetry.dependencies]\nsix = \"*\"\n";
    assert!(refusal(&[("pyproject.toml", poetry)]).contains("put a requirements.txt beside it"));
    let option = "[project]\ndependencies = [\"-r /etc/passwd\"]\n";
    assert!(refusal(&[("pyproject.toml", option)]).contains("is not a requirement"));
}

#[test]
fn lines_that_point_at_files_are_local() {
    for line in [
        ".",
        "./vendored",
        "vendored/x.whl",
        "x.tar.gz",
        "x @ file:///x.whl",
        "x @ ./x",
        "file:x",
        "-f wheels\nsix",
    ] {
        assert!(
            found(&[("requirements.txt", line)]).unwrap().local,
            "{line}"
        );
    }
    for line in [
        "six",
        "six[a] ; python_version < '4'",
        "git+https://example.org/x.git",
        "x @ https://example.org/x.whl",
    ] {
        assert!(
            !found(&[("requirements.txt", line)]).unwrap().local,
            "{line}"
        );
    }
}

#[test]
fn a_line_names_its_package() {
    let package = |line| Requirements::package(line);
    assert_eq!(
        package("Scikit_Image[x]>=1").as_deref(),
        Some("scikit-image")
    );
    assert_eq!(package("ruamel.yaml").as_deref(), Some("ruamel-yaml"));
    assert_eq!(package("x @ https://example.org/y").as_deref(), Some("x"));
    for line in [
        "--hash=x",
        "./x",
        "https://example.org",
        "git+https://example.org",
        "x.whl",
        "vendored/x",
    ] {
        assert_eq!(package(line), None, "{line}");
    }
}

#[test]
fn no_character_hides_a_line_from_the_hash() {
    for end in [
        "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\u{85}", "\u{2028}", "\u{2029}", "\0",
        "\x1b", "\u{feff}",
    ] {
        let text = format!("numpy\nsix # x{end}evil\n");
        let problem = refusal(&[("requirements.txt", &text)]);
        assert!(
            problem.starts_with("requirements.txt:2: has the character \\u{"),
            "{problem}"
        );
        let included = [("requirements.txt", "-r more.txt"), ("more.txt", &text)];
        assert!(refusal(&included).starts_with("more.txt:2: has the character"));
        let bounds = [
            ("requirements.txt", "six\n-c more.txt"),
            ("more.txt", &text),
        ];
        assert!(refusal(&bounds).starts_with("more.txt:2: has the character"));
        let word = format!(
            "[project]\ndependencies = [\"six{}\"]",
            end.escape_unicode()
        );
        let word = word.replace("\\u{", "\\U").replace('}', "");
        let word = word
            .split("\\U")
            .enumerate()
            .map(|(at, part)| match (at, part.find('"')) {
                (0, _) | (_, None) => part.to_owned(),
                (_, Some(quote)) => format!("\\U{:0>8}{}", &part[..quote], &part[quote..]),
            })
            .collect::<String>();
        let problem = refusal(&[("pyproject.toml", &word)]);
        assert!(
            problem.contains("a requirement cannot have")
                || problem.contains("is not a requirement"),
            "{problem}"
        );
    }
}

#[test]
fn a_last_line_that_ends_in_a_lone_carriage_return_is_refused() {
    assert!(refusal(&[("requirements.txt", "six\r")]).contains("\\u{d}"));
    assert!(found(&[("requirements.txt", "six\r\n")]).is_some());
}

#[test]
fn a_file_does_not_choose_its_encoding() {
    for text in [
        "# coding: utf-7\nsix",
        "six\n  # -*- coding=latin-1 -*-\n",
        "# vim: set fileencoding=utf-7 :\nsix",
    ] {
        assert!(refusal(&[("requirements.txt", text)]).contains("names an encoding"));
    }
    let later = "six\nnumpy\n# coding: is fun\n";
    assert!(found(&[("requirements.txt", later)]).is_some());
}

#[test]
fn only_known_options_are_passed_on() {
    for line in [
        "--req more.txt",
        "--requirements=more.txt",
        "--index https://example.org",
        "--pre --const=x",
        "--use-feature=fast-deps",
        "--target=/x",
        "six --req=more.txt",
        "six -r more.txt",
    ] {
        let problem = refusal(&[("requirements.txt", line), ("more.txt", "six")]);
        assert!(problem.starts_with("requirements.txt:1: '-"), "{problem}");
        assert!(problem.contains("is not an option"), "{problem}");
    }
    assert!(refusal(&[("requirements.txt", "-i 'https://x'")]).contains("has quotes"));
    assert!(
        refusal(&[("requirements.txt", "-r https://example.org/r.txt")]).contains("put a copy")
    );
    assert!(
        refusal(&[
            ("requirements.txt", "six\n-c b.txt"),
            ("b.txt", "-i https://x")
        ])
        .contains("cannot have")
    );
    assert!(
        refusal(&[("requirements.txt", "six==${V}")]).contains("a variable of the environment")
    );
    let fine = "--index-url https://example.org/simple\nsix==1 --hash=sha256:00\n--pre\n";
    assert_eq!(found(&[("requirements.txt", fine)]).unwrap().lines.len(), 3);
}

#[test]
fn what_is_built_from_source_is_known() {
    for line in [
        "./p",
        "x @ ./p",
        "x.tar.gz",
        "git+https://example.org/x.git",
        "x @ https://example.org/x.zip#sha256=1",
        "--no-binary :all:\nsix",
        "--only-binary=six\nsix",
        ".",
    ] {
        let found = found(&[("requirements.txt", line)]).unwrap();
        assert!(found.wants_source().is_some(), "{line}");
    }
    for line in [
        "six",
        "six[a] ; python_version < '4'",
        "x @ https://example.org/x-1-py3-none-any.whl#sha256=1",
        "vendored/x.whl",
        "-f wheels\nsix",
    ] {
        let found = found(&[("requirements.txt", line)]).unwrap();
        assert_eq!(found.wants_source(), None, "{line}");
    }
}

proptest! {
    /// What an installer reads is what was hashed: the text of a set has the same lines, by every rule for line ends.
    #[test]
    fn a_set_written_as_a_file_is_the_same_set(text in "[-a-z=#\\\\ \t\n\r\u{c}\u{85}\u{2028}\u{a0}.:$\\{'\"]{0,60}") {
        let all = [("requirements.txt", text.as_str())];
        if let Ok(Some(one)) = find(code(&all).path(), RequirementFiles::All) {
            let written = Requirements::text(&one.lines);
            prop_assert!(!written.chars().any(|c| is_confusing(c) && c != '\n'));
            let again = found(&[("requirements.txt", &written)]).unwrap();
            prop_assert_eq!(one.lines, again.lines);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[-a-z0-9=<>.@/#\\\\ \\n\\r]{0,200}") {
        let _ = find(code(&[("requirements.txt", &text)]).path(), RequirementFiles::All);
    }

    #[test]
    fn order_never_counts(mut lines in prop::collection::vec("[a-z]{1,8}==[0-9]", 1..6), seed in any::<prop::sample::Index>()) {
        let one = found(&[("requirements.txt", &lines.join("\n"))]);
        let middle = seed.index(lines.len());
        lines.rotate_left(middle);
        prop_assert_eq!(one, found(&[("requirements.txt", &lines.join("\n"))]));
    }
}
