//! Tests of terminal output and shell integration: quiet commands, labels, hints, completion and manual pages.

use crate::{
    common::{command, create_model, mage, stderr, stdout, text},
    train::{ok, train},
};
use std::fs;

#[test]
fn a_finished_run_names_the_next_commands_unless_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let output = ok(&mut train(&run, &[]));
    let hints = stderr(&output);
    for command in ["mage eval ", "mage play --against ", "mage report ", "tensorboard --logdir "] {
        assert!(hints.contains(&format!("{command}{}", run.display())), "{hints}");
    }
    let parameters = hints.lines().find(|l| l.contains(" parameters, 6 updates")).unwrap();
    assert!(parameters.contains(','), "digits are grouped: {parameters}");
    // A finished run that is resumed leaves no log, and does nothing but report.
    let resumed = ok(mage_command(&["train", "--quiet", "--resume"]).arg(&run));
    assert_eq!(stderr(&resumed), "");
    assert!(stdout(&resumed).contains("6 updates in "), "{}", stdout(&resumed));
    assert!(!text(&resumed).contains("mage play") && !text(&resumed).contains("tensorboard"), "{}", text(&resumed));
    let logs: Vec<_> = fs::read_dir(run.join("logs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(logs, ["attempt-1.log"]);
    let shown = ok(mage_command(&["eval"]).arg(&run));
    assert!(
        stdout(&shown).contains("score (exact)") && stdout(&shown).contains("exact scores are"),
        "{}",
        text(&shown)
    );
    // The directory is taken.
    let taken = train(&run, &[]).output().unwrap();
    assert_eq!(taken.status.code(), Some(2), "{}", stderr(&taken));
    let longer = mage_command(&["train", "--set", "optim.updates=60", "--resume"]).arg(&run).output().unwrap();
    assert!(stderr(&longer).contains("continues from 6 updates to 60"), "{}", stderr(&longer));
}

fn mage_command(args: &[&str]) -> std::process::Command {
    let mut command = command();
    command.args(args);
    command
}

#[test]
fn sampled_scores_are_labelled() {
    let alone = stdout(&mage(&["eval", "bayes", "--tasks", "40"]));
    assert!(alone.contains("score (sampled)") && !alone.contains("exact scores"), "{alone}");
    let several = stdout(&mage(&["eval", "bayes", "random", "--tasks", "400"]));
    let rows: Vec<&str> = several.lines().take(3).collect();
    assert!(rows[0].contains("scores") && rows[1].contains("sampled"), "{several}");
    assert!(rows[2].starts_with("random") && rows[2].contains("below memoryless"), "{several}");
}

#[test]
fn an_unset_key_variable_is_reported() {
    let eval = |more: &[&str]| {
        let args = ["eval", "--endpoint", "http://127.0.0.1:1", "--model", "m", "--tasks", "1", "--seeds", "1"];
        let mut command = command();
        command.env_remove("MAGE_API_KEY").args(args).args(["--deadline", "0.1"]).args(more);
        stderr(&command.output().unwrap())
    };
    let warned = eval(&["--key-env", "MAGE_TEST_NO_SUCH_KEY"]);
    assert!(warned.contains("warning: --key-env: MAGE_TEST_NO_SUCH_KEY is not set"), "{warned}");
    assert!(!eval(&[]).contains("--key-env"), "the default variable need not be set");
}

#[test]
fn the_requested_and_the_actual_vocabulary_are_stated() {
    let dir = tempfile::tempdir().unwrap();
    create_model(dir.path());
    let at = |name: &str| dir.path().join(name).display().to_string();
    let new = |more: &[&str], out: &str| {
        mage(&[&["model", "new", "--config", &at("config.json")][..], more, &[&at(out)]].concat())
    };
    let created = text(&new(&["--tokenizer-from", &at("text.txt")], "large"));
    assert!(created.contains("a vocabulary of ") && created.contains("--vocab-size 4,096 was requested"), "{created}");
    fs::write(at("empty.txt"), " \n").unwrap();
    let refused = new(&["--words", &at("empty.txt")], "none");
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("empty.txt: the file has no words"), "{}", stderr(&refused));
    assert!(!dir.path().join("none").exists());
}

#[test]
fn the_gpus_of_a_slurm_allocation_are_stated_per_node() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("launch").display().to_string();
    let output = mage(&["launch", "slurm", "--model", "m", "--out", &out]);
    assert!(stderr(&output).contains("needs 4 GPUs on each of 2 nodes"), "{}", stderr(&output));
}

/// What a shell is offered for the last of these words.
fn completions(words: &[&str]) -> Vec<String> {
    let output = command().env("MAGE_COMPLETE", "fish").args(["--", "mage"]).args(words).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).lines().map(|l| l.split('\t').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn shells_complete_names_and_values() {
    for (words, expected) in [
        (&["tr"][..], "train"),
        (&["train", "kuh"], "kuhn"),
        (&["train", "lam"], "lamer"),
        (&["train", "--set", "optim.upd"], "optim.updates="),
        (&["eval", "bay"], "bayes"),
        (&["eval", "--env", "tic"], "tictactoe"),
        (&["eval", "--preset", "sokoban-"], "sokoban-3"),
        (&["eval", "--method", "ref"], "reflexion"),
        (&["play", "web"], "webshop"),
        (&["play", "--opponent", "aggr"], "aggressive"),
        (&["env", "show", "--population", "pap"], "paper"),
        (&["sweep", "table"], "table1"),
        (&["recipe", "explain", "optim.upd"], "optim.updates"),
        (&["recipe", "explain", "lam"], "lamer"),
        (&["completions", "z"], "zsh"),
    ] {
        let found = completions(words);
        assert!(found.iter().any(|name| name == expected), "{words:?}: {found:?}");
        assert!(!found.is_empty() && found.len() < 20, "{words:?}: {found:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    ok(&mut train(&dir.path().join("runs/kuhn-7"), &["--set", "optim.updates=1"]));
    for (typed, expected) in [("runs/kuhn", "runs/kuhn-7"), ("runs/kuhn-7@", "runs/kuhn-7@best")] {
        let mut shell = command();
        shell.env("MAGE_COMPLETE", "fish").current_dir(dir.path()).args(["--", "mage", "eval", typed]);
        assert!(stdout(&shell.output().unwrap()).contains(expected), "{typed}");
    }
}

#[test]
fn manual_pages_are_written_for_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man1");
    assert!(mage(&["man", out.to_str().unwrap()]).status.success());
    for page in ["mage.1", "mage-train.1", "mage-env-show.1"] {
        let page = fs::read_to_string(out.join(page)).unwrap();
        assert!(page.contains(".TH mage") && page.contains(".SH"), "{page}");
    }
}
