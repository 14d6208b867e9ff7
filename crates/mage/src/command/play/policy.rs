//! `mage play --against RUN|MODEL`: a game between a person and a model.
//!
//! The game runs on its own thread, which requests the person's moves over channels. If the person quits, the thread is
//! abandoned.

use super::{complete, list_actions, plural, print_prompt, prompt_choices, seed_from_clock};
use crate::{
    App,
    cli::PlayArgs,
    command::{eval::sampling_line, train::train_env},
    line_editor,
    output::{BOLD, DIM, GOOD, Output, styled},
    table::table,
    usage,
};
use mage_core::RequestKind;
use mage_env::{HumanPlayer, HumanView, Seed};
use mage_native::Device;
use mage_train::{
    PolicyHost,
    engines::SamplerOptions,
    policy::{DecodingConfig, NamedPolicy},
    recipe::Recipe,
    run_dir::{ModelAddress, RunDir},
    train::TrainEnv,
};
use serde::Serialize;
use std::{
    io::{BufRead, IsTerminal, stdin},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
};

/// Messages of the game thread.
enum GameMessage {
    Turn(HumanView),
    Rejected(String),
    EpisodeEnd(HumanView, f32),
}

/// The person's side of the game thread.
struct ChannelPlayer {
    messages: Sender<GameMessage>,
    input: Mutex<Receiver<String>>,
}

impl HumanPlayer for ChannelPlayer {
    fn act(&self, view: &HumanView, read: &dyn Fn(&str) -> Result<usize, String>) -> usize {
        let input = self.input.lock().expect("one game at a time");
        let _ = self.messages.send(GameMessage::Turn(view.clone()));
        // After the person has quit, the game's result is discarded, so any move will do.
        while let Ok(text) = input.recv() {
            match read(&complete(text.trim(), &view.legal, None)) {
                Ok(choice) => return choice,
                Err(reason) => _ = self.messages.send(GameMessage::Rejected(reason)),
            }
        }
        0
    }

    fn game_over(&self, view: &HumanView, score: f32) {
        let _ = self.messages.send(GameMessage::EpisodeEnd(view.clone(), score));
    }
}

/// Events of `--json`, one object per line. Actions are read from stdin, one per line.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum PolicyGameEvent<'a> {
    Start { env: &'a str, episodes: u32 },
    Turn { seat: u8, observation: &'a str, legal: &'a [String] },
    Rejected { reason: &'a str },
    EpisodeEnd { episode: usize, observation: &'a str, score: f32 },
    Finished { scores: &'a [f32], reflections: Option<&'a [String]> },
}

pub(crate) fn run(app: &App, args: &PlayArgs, address: &str, out: &Output) -> anyhow::Result<()> {
    let (policy, recipe, env) = open(app, args, address)?;
    let title = env.env_spec.info().title;
    let rules = |seat| app.prompts.get(&recipe.env.name).and_then(|p| p.rules_for_humans(seat)).unwrap_or_default();
    let decoding = policy.decoding.clone();
    let host = PolicyHost::new(policy, &recipe, env, args.episodes).map_err(usage)?;
    let sampling = decoding.map(|d| sampling_line(&d.params, host.episode_config(), Some(d.thinking)));
    let seed = Seed::new(args.seed.unwrap_or_else(seed_from_clock));
    let ((message_sender, messages), (input_sender, input)) = (channel(), channel());
    let player = Arc::new(ChannelPlayer { messages: message_sender, input: Mutex::new(input) });
    let game = std::thread::spawn(move || host.play(player, seed));

    match out.json {
        true => out.object(&PolicyGameEvent::Start { env: &recipe.env.name, episodes: args.episodes })?,
        false => {
            let episodes = plural(args.episodes, "episode");
            out.line(format!("{}: {episodes} against the policy of {address}.", styled(BOLD, title)))?;
            sampling.into_iter().for_each(|line| out.hint(line));
            out.hint(format!("? shows the rules, q quits. (--seed {} repeats this game.)", seed.value()));
        }
    }
    let mut scores = Vec::new();
    let mut current: Option<HumanView> = None;
    let quit = loop {
        match messages.recv() {
            Err(_) => break false,
            Ok(GameMessage::EpisodeEnd(view, score)) => {
                scores.push(score);
                print_episode_end(&view, scores.len(), score, out)?;
                current = None;
                continue;
            }
            Ok(GameMessage::Turn(view)) => {
                if out.json {
                    let (seat, observation, legal) = (view.seat, &*view.text, &*view.legal);
                    out.object(&PolicyGameEvent::Turn { seat, observation, legal })?;
                } else {
                    if current.is_none() {
                        out.line(format!("\n{}", styled(BOLD, format!("Episode {}", scores.len() + 1))))?;
                    }
                    show(&view, out)?;
                }
                current = Some(view);
            }
            Ok(GameMessage::Rejected(reason)) => reject(&reason, out)?,
        }
        let Some(view) = &current else { continue };
        match read_input(view, &rules, out)? {
            Some(text) => _ = input_sender.send(text),
            None => break true,
        }
    };
    drop(input_sender);
    let trajectory = match quit {
        true => None,
        false => Some(game.join().map_err(|_| anyhow::anyhow!("the game thread panicked"))??),
    };
    if let Some(error) = trajectory.as_ref().and_then(|t| t.error.as_ref()) {
        anyhow::bail!("the game failed: {error}");
    }
    let reflections: Option<Vec<String>> = trajectory.filter(|_| args.reveal).map(|t| {
        let requests = t.requests.iter().filter(|r| r.kind == RequestKind::Reflect);
        requests.map(|r| r.completion.text.clone()).collect()
    });
    finish(&scores, reflections.as_deref(), out)
}

/// The policy of a run, or a model in a folder with the defaults of a recipe.
fn open(app: &App, args: &PlayArgs, address: &str) -> anyhow::Result<(NamedPolicy, Recipe, TrainEnv)> {
    let neither = || usage(format!("{address}: neither a run, nor a checkpoint of one, nor a model directory"));
    let resolved = ModelAddress::resolve(address).map_err(usage)?.ok_or_else(neither)?;
    let trained = resolved.run.as_deref().map(RunDir::recipe).transpose().map_err(usage)?;
    let mut recipe = trained.clone().unwrap_or_default();
    match (&args.env, &trained) {
        (Some(env), Some(_)) if *env != recipe.env.name => {
            return Err(usage(format!("{address} was trained on {}, not on {env}", recipe.env.name)));
        }
        (Some(env), None) => recipe.env.name.clone_from(env),
        _ => {}
    }
    let env = train_env(app, &recipe)?;
    // The GPU on which the policy was trained may not exist on this machine.
    let device = args.device.unwrap_or(match recipe.engine.device {
        Device::Cpu => Device::Cpu,
        Device::Auto | Device::Cuda(_) => Device::Auto,
    });
    let status_log = env.status_log.clone();
    let options = SamplerOptions { device, threads: recipe.engine.threads, batch_invariant: false, status_log };
    let params = recipe.eval_sampling();
    if trained.is_some() {
        let decoding = DecodingConfig { params, thinking: recipe.play.thinking };
        let policy = NamedPolicy::of_run(&resolved, &recipe, decoding, options).map_err(usage)?;
        return Ok((policy, recipe, env));
    }
    let policy = NamedPolicy::folder(address.as_ref(), &env.env_spec.info(), params, None, options).map_err(usage)?;
    recipe.play.form = policy.prompt_form().unwrap_or_default();
    (recipe.play.episodes, recipe.eval.episodes) = (args.episodes, args.episodes);
    Ok((policy, recipe, env))
}

/// The next line of input for the game; `None` if the person quits.
fn read_input(view: &HumanView, rules: &dyn Fn(u8) -> String, out: &Output) -> anyhow::Result<Option<String>> {
    loop {
        if !out.json {
            print_prompt("your move", &prompt_choices(&view.legal, None), out)?;
        }
        let line = match !out.json && stdin().is_terminal() {
            true => line_editor::read_line(0)?,
            false => read_piped_line()?,
        };
        let Some(line) = line else { return Ok(None) };
        match line.trim() {
            "q" | "quit" | "exit" => return Ok(None),
            "?" | "help" => {
                let rules = rules(view.seat);
                reject(&format!("{}\n\nLegal here: {}", rules.trim_end(), list_actions(&view.legal)), out)?;
            }
            _ => return Ok(Some(line)),
        }
    }
}

/// A line of a pipe or file. Invalid UTF-8 is replaced; the game then rejects the input as a move.
fn read_piped_line() -> std::io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = stdin().lock().read_until(b'\n', &mut line)?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&line).into_owned()))
}

fn show(view: &HumanView, out: &Output) -> anyhow::Result<()> {
    match &view.rendering {
        Some(board) => out.line(format!("\n{board}\n")),
        None => out.line(&view.text),
    }
}

fn reject(reason: &str, out: &Output) -> anyhow::Result<()> {
    match out.json {
        true => out.object(&PolicyGameEvent::Rejected { reason }),
        false => out.line(styled(DIM, reason)),
    }
}

fn print_episode_end(view: &HumanView, episode: usize, score: f32, out: &Output) -> anyhow::Result<()> {
    if out.json {
        return out.object(&PolicyGameEvent::EpisodeEnd { episode, observation: &view.text, score });
    }
    show(view, out)?;
    out.line(match score {
        s if s > 0.0 => styled(GOOD, format!("You won ({s:+}).")),
        s if s < 0.0 => format!("You lost ({s:+})."),
        _ => "Draw.".to_owned(),
    })
}

fn finish(scores: &[f32], reflections: Option<&[String]>, out: &Output) -> anyhow::Result<()> {
    if out.json {
        return out.object(&PolicyGameEvent::Finished { scores, reflections });
    }
    if scores.is_empty() {
        return out.line("\nNo episode was finished.");
    }
    let rows = scores.iter().enumerate().map(|(i, s)| vec![(i + 1).to_string(), format!("{s:+}")]);
    out.line(format!("\n{}", table(&["episode", "you"], rows)))?;
    match reflections {
        Some(reflections) => reflections
            .iter()
            .enumerate()
            .try_for_each(|(i, text)| out.line(format!("reflection after episode {}: {text}", i + 1))),
        None => {
            out.hint("Use --reveal to print the policy's reflections.");
            Ok(())
        }
    }
}
