//! Every example command of `--help`, README and docs is run with small settings, each in a copy of one workspace.
//! Examples that need a network, a GPU, a server or official data are parsed only.

use crate::common::{SWEEP, command, json, mage, stderr, stdout};
use crate::train::SMALL;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// Examples that are parsed only, by their first words, with the reason.
const PARSED_ONLY: [(&str, &str); 11] = [
    ("eval --endpoint", "needs an inference server"),
    ("sweep paper/table1 --endpoint", "needs an inference server"),
    ("env conform", "needs recordings of the original implementations"),
    ("env generate alfworld", "needs ALFWorld's data"),
    ("doctor --engine", "needs training and inference servers"),
    ("train kuhn launch/engine.toml", "needs training and inference servers"),
    ("train kuhn --device cuda", "needs a GPU"),
    ("bench sampler my-model --device cuda", "needs a GPU"),
    ("model generate Qwen/", "downloads a model"),
    ("model merge Qwen/", "downloads a model"),
    ("warmstart paper/kuhn", "needs a large model"),
];

/// Words of synopses and their values.
const PLACEHOLDERS: [(&str, &str); 11] = [
    ("A", "runs/kuhn-1"),
    ("B", "runs/kuhn-2"),
    ("DIR", "out"),
    ("FILE", "recordings.jsonl"),
    ("MODEL", "my-model"),
    ("N", "1"),
    ("NAME", "kuhn"),
    ("RECIPE", "kuhn"),
    ("RUN", "runs/kuhn-1"),
    ("SHELL", "bash"),
    ("VALUE", "1"),
];

/// Commands that create a folder, which must not exist yet.
const CREATES: [(&str, &str); 2] = [("model new", "my-model"), ("warmstart", "models/kuhn")];

/// Longest line of an example in a help text: it fits a terminal of 80 columns.
const MAX_EXAMPLE: usize = 78;

/// A command line without `mage`, and where it stands.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Example {
    words: Vec<String>,
    /// Whether a text names a command without its arguments.
    is_name: bool,
    source: String,
}

impl Example {
    fn is_parsed_only(&self) -> bool {
        let has_alternatives = self.words.iter().any(|word| word.contains('|'));
        self.is_name || has_alternatives || PARSED_ONLY.iter().any(|(prefix, _)| self.starts_with(prefix))
    }

    fn starts_with(&self, prefix: &str) -> bool {
        self.words.join(" ").starts_with(prefix)
    }
}

/// Splits a command line at white space outside of quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// The commands of a line: joined by `&&`, with a remark after two spaces or `#`, and a redirection at the end.
fn commands(line: &str, source: &str) -> Vec<Example> {
    let mut found = Vec::new();
    for part in line.split("&&") {
        let part = part.trim();
        let part = part.split(" > ").next().unwrap_or_default();
        let part = part.split("  ").next().unwrap_or_default();
        let Some(command) = part.strip_prefix("mage ").or_else(|| part.strip_prefix("cargo run --release -- ")) else {
            continue;
        };
        let words = words(command).into_iter().filter(|word| !word.starts_with('[') && !word.ends_with(']'));
        let value = |word: String| {
            let known = PLACEHOLDERS.iter().find(|(name, _)| *name == word);
            known.map_or_else(|| word.trim_start_matches("~/").to_owned(), |(_, value)| (*value).to_owned())
        };
        found.push(Example { words: words.map(value).collect(), is_name: false, source: source.to_owned() });
    }
    found
}

/// Help texts of all commands.
fn help_texts(prefix: &[&str], texts: &mut Vec<(String, String)>) {
    let output = command().args(prefix).arg("--help").env("COLUMNS", "80").output().expect("mage starts");
    assert!(output.status.success(), "{prefix:?}");
    let text = stdout(&output);
    let subcommands = text.lines().skip_while(|l| *l != "Commands:").skip(1).take_while(|l| !l.is_empty());
    let names: Vec<&str> = subcommands
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next())
        .filter(|name| *name != "help")
        .collect();
    for name in names {
        help_texts(&[prefix, &[name]].concat(), texts);
    }
    texts.push((format!("mage {} --help", prefix.join(" ")), text));
}

/// Examples of help texts: indented lines that start with the command. Panics about lines that do not fit.
fn help_examples() -> Vec<Example> {
    let (mut texts, mut found) = (Vec::new(), Vec::new());
    help_texts(&[], &mut texts);
    for (source, text) in &texts {
        let examples = text.split("Examples:\n").nth(1).or_else(|| text.split("Example:\n").nth(1));
        let Some(examples) = examples else {
            assert!(!text.contains("Example"), "{source}: expected `Example:` or `Examples:` on a line of its own");
            continue;
        };
        let lines: Vec<&str> = examples.lines().take_while(|l| l.starts_with("  ")).collect();
        for line in &lines {
            assert!(line.chars().count() <= MAX_EXAMPLE, "{source}: the example is too long: {line}");
        }
        let joined = lines.join("\n").replace("\\\n", " ");
        found.extend(joined.lines().flat_map(|line| commands(line, source)));
    }
    found
}

/// Examples of a document: lines of code blocks that start with `$`, and code spans that start with `mage`.
fn document_examples(path: &Path) -> Vec<Example> {
    let text = fs::read_to_string(path).expect("readable").replace("\\|", "|");
    let source = path.file_name().expect("a file").to_string_lossy().into_owned();
    let mut found = Vec::new();
    for (n, block) in text.split("```").enumerate() {
        match n % 2 {
            1 => {
                let joined = block.replace("\\\n", " ");
                let lines = joined.lines().filter_map(|line| line.strip_prefix("$ "));
                found.extend(lines.flat_map(|line| commands(line.split(" #").next().unwrap_or_default(), &source)));
            }
            _ => {
                let spans = block.split('`').skip(1).step_by(2).filter(|span| span.starts_with("mage "));
                let in_text = spans.flat_map(|span| commands(&words(span).join(" "), &source));
                found.extend(in_text.map(|example| Example { is_name: example.words.len() < 2, ..example }));
            }
        }
    }
    found
}

/// All Markdown files of the repository's root and of docs.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    let mut folders = vec![root.join("docs")];
    let files = |folder: &Path| fs::read_dir(folder).expect("readable").map(|e| e.expect("an entry").path());
    let is_markdown = |path: &PathBuf| path.extension().is_some_and(|e| e == "md");
    // The change log describes earlier versions.
    found.extend(files(&root).filter(|path| is_markdown(path) && !path.ends_with("CHANGELOG.md")));
    while let Some(folder) = folders.pop() {
        for path in files(&folder) {
            if path.is_dir() { folders.push(path) } else { found.extend(Some(path).filter(is_markdown)) }
        }
    }
    found
}

/// The files and folders that examples name.
fn create_workspace(dir: &Path) {
    let run = |args: &[&str]| {
        let output = command().current_dir(dir).args(args).output().expect("mage starts");
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
    };
    let small: Vec<&str> = SMALL.iter().flat_map(|setting| ["--set", setting]).collect();
    run(&[&["train", "--out", "runs/kuhn-1"][..], &small].concat());
    let copy = |from: &str, to: &str| {
        let to = dir.join(to);
        fs::create_dir_all(to.parent().expect("a folder")).expect("created");
        assert!(Command::new("cp").arg("-r").args([&dir.join(from), &to]).status().expect("cp").success());
    };
    copy("runs/kuhn-1", "runs/kuhn-2");
    copy("runs/kuhn-1", "sweeps/table1/kuhn/run");
    for model in ["models/kuhn", "other-model"] {
        copy("runs/kuhn-1/checkpoints/000006", model);
    }
    let config = r#"{"model_type": "qwen3", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": true,
        "max_position_embeddings": 1024, "vocab_size": 512}"#;
    let population = "env = \"kuhn\"\n[[opponent]]\nname = \"fox\"\nkind = \"aggressive\"\n\
                      splits = [\"in-domain\", \"out-of-domain\"]\n";
    for (file, text) in [
        ("config.json", config),
        ("notes.txt", &"PASS or BET? The King bets, the Jack folds. Once\n".repeat(20)),
        ("words.txt", "PASS BET ? the King bets"),
        ("my.toml", "optim.epochs = 1\n"),
        ("mine.toml", population),
        ("my-sweep.toml", SWEEP),
        ("sequences.jsonl", "[1, 2, 3]\n"),
    ] {
        fs::write(dir.join(file), text).expect("written");
    }
    run(&[
        "model",
        "new",
        "--config",
        "config.json",
        "--tokenizer-from",
        "notes.txt",
        "--vocab-size",
        "300",
        "my-model",
    ]);
    run(&["eval", "bayes", "--tasks", "4", "--trajectories", "eval.jsonl", "--summary", "eval.json"]);
}

/// The example with small settings.
fn small(example: &Example) -> Vec<String> {
    let mut words = example.words.clone();
    let mut set = |flag: &str, value: &str| match words.iter().position(|word| word == flag) {
        Some(at) => words[at + 1] = value.to_owned(),
        None => words.extend([flag.to_owned(), value.to_owned()]),
    };
    match example.words[0].as_str() {
        "eval" => set("--tasks", "4"),
        "bench" => {
            set("--requests", "8");
            set("--completion-tokens", "2");
        }
        "train" if !example.starts_with("train --resume") => set("--threads", "1"),
        _ => {}
    }
    let trains = matches!(&*example.words[0], "train" | "warmstart") && !example.starts_with("train --resume");
    if trains {
        // The shape of an existing model is its own.
        let existing = example.words.iter().any(|word| word.starts_with("model.path="));
        let settings = SMALL.iter().filter(|setting| !(existing && setting.starts_with("model.")));
        words.extend(settings.flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
    }
    if example.words[0] == "sweep" && example.words[1] != "list" && !words.contains(&"--dry-run".to_owned()) {
        words.push("--dry-run".to_owned());
    }
    words
}

#[test]
fn every_example_of_the_help_and_the_documents_works() {
    let documented: Vec<Example> = documents().iter().flat_map(|path| document_examples(path)).collect();
    let in_help = help_examples();
    assert!(documented.len() > 20 && in_help.len() > 30, "{} and {}", documented.len(), in_help.len());
    let all: BTreeSet<Example> = in_help.into_iter().chain(documented).collect();
    for (prefix, reason) in PARSED_ONLY {
        assert!(all.iter().any(|example| example.starts_with(prefix)), "no example starts with `{prefix}` ({reason})");
    }
    let dir = tempfile::tempdir().expect("a folder");
    let workspace = dir.path().join("workspace");
    fs::create_dir_all(workspace.join("docs")).expect("created");
    create_workspace(&workspace);
    let mut seen = BTreeSet::new();
    let mut failures = Vec::new();
    for example in all.iter().filter(|example| seen.insert(&example.words)) {
        let words = match example.is_parsed_only() {
            true => {
                // Alternatives are checked by the command before them.
                let end = example.words.iter().position(|word| word.contains('|')).unwrap_or(example.words.len());
                [&example.words[..end], &["--help".to_owned()]].concat()
            }
            false => small(example),
        };
        let copy = dir.path().join("copy");
        assert!(Command::new("cp").arg("-r").args([&workspace, &copy]).status().expect("cp").success());
        for (_, folder) in CREATES.iter().filter(|(prefix, _)| example.starts_with(prefix)) {
            fs::remove_dir_all(copy.join(folder)).expect("removed");
        }
        let output = command().current_dir(&copy).args(&words).output().expect("mage starts");
        if !output.status.success() {
            failures.push(format!("{}: mage {}: {}", example.source, words.join(" "), stderr(&output)));
        }
        fs::remove_dir_all(&copy).expect("removed");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_command_prints_json() {
    let dir = tempfile::tempdir().expect("a folder");
    create_workspace(dir.path());
    for line in [
        "env list",
        "env show kuhn",
        "env show kuhn --oracles",
        "eval --preset list",
        "eval bayes random --tasks 4",
        "recipe list",
        "recipe show",
        "recipe explain optim",
        "runs",
        "runs diff runs/kuhn-1 runs/kuhn-2",
        "sweep list",
        "sweep table1 --dry-run",
        "report runs",
        "model info my-model",
        "model score my-model --tokens sequences.jsonl",
        "model generate my-model --prompt Once --max-tokens 2",
        "model new --config config.json --words words.txt new-model",
        "launch uv --model m",
        "launch slurm --model m --dry-run",
        "train --dry-run",
        "train --resume runs/kuhn-1",
        "bench sampler my-model --requests 2 --completion-tokens 2",
        "doctor",
        "man",
        "play",
    ] {
        let output = command().current_dir(dir.path()).arg("--json").args(words(line)).output().expect("mage starts");
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        let text = stdout(&output);
        assert!(
            !text.is_empty() && text.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).is_ok()),
            "{line}: {text}"
        );
    }
    let presets = json(&mage(&["eval", "--preset", "list", "--json"]));
    assert!(presets[0]["name"].is_string() && presets[0]["description"].is_string(), "{presets}");
}

#[test]
fn errors_are_json_with_the_exit_code() {
    for (args, code, expected) in [
        (&["--json", "eval", "clever"][..], 2, "unknown policy `clever`"),
        (&["eval", "bayes", "--tasks", "0", "--json"], 2, "expected a whole number from 1"),
        (&["--json", "frobnicate"], 2, "unrecognized subcommand 'frobnicate'"),
        (
            &["eval", "random", "--tasks", "2", "--trajectories", "/nonexistent/t.jsonl", "--json"],
            1,
            "/nonexistent/t.jsonl",
        ),
    ] {
        let output = mage(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}");
        let error: serde_json::Value = serde_json::from_str(stderr(&output).trim()).expect("one line of JSON");
        assert_eq!(error["code"], code);
        let text = error["error"].as_str().expect("a text");
        assert!(text.starts_with(|c: char| c != '\u{1b}') && text.contains(expected), "{args:?}: {text}");
    }
}
