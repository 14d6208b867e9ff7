//! `mage play --against RUN`: sit down opposite a trained policy.
//!
//! The policy plays on a thread of its own and asks for a move when it is the person's turn; a person who leaves is not
//! waited for.

use super::{completed, from_clock, listed, plural};
use crate::{
    App,
    cli::PlayArgs,
    command::train::setting,
    output::{BOLD, DIM, GOOD, Output, styled},
    table::table,
    usage,
};
use mage_core::RequestKind;
use mage_env::{HumanPlayer, HumanView, Seed};
use mage_native::Device;
use mage_train::{PolicyHost, run_dir::RunDir};
use serde::Serialize;
use std::{
    io::{BufRead, stdin},
    path::Path,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
};

/// What the person is told.
enum Said {
    Turn(HumanView),
    Refused(String),
    Over(HumanView, f32),
}

/// The person's chair.
struct Chair {
    said: Sender<Said>,
    typed: Mutex<Receiver<String>>,
}

impl HumanPlayer for Chair {
    fn act(&self, view: &HumanView, read: &dyn Fn(&str) -> Result<usize, String>) -> usize {
        let typed = self.typed.lock().expect("only one game is played");
        let _ = self.said.send(Said::Turn(view.clone()));
        // Once the person has left, any move will do: nobody looks at it.
        while let Ok(text) = typed.recv() {
            match read(&completed(text.trim(), &view.legal, None)) {
                Ok(choice) => return choice,
                Err(reason) => _ = self.said.send(Said::Refused(reason)),
            }
        }
        0
    }

    fn game_over(&self, view: &HumanView, score: f32) {
        let _ = self.said.send(Said::Over(view.clone(), score));
    }
}

/// What programs are told (`--json`): one object a line; actions are read from stdin, one a line.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
    Start { env: &'a str, episodes: u32 },
    Turn { seat: u8, observation: &'a str, legal: &'a [String] },
    Refused { reason: &'a str },
    End { episode: usize, observation: &'a str, score: f32 },
    Close { scores: &'a [f32], notes: Option<&'a [String]> },
}

pub(crate) fn run(app: &App, args: &PlayArgs, dir: &Path, out: &Output) -> anyhow::Result<()> {
    let recipe = RunDir::recipe(dir).map_err(usage)?;
    let setting = setting(app, &recipe)?;
    let title = setting.env_spec.info().title;
    let rules = |seat| app.prompts.get(&recipe.env.name).and_then(|p| p.rules_for_humans(seat)).unwrap_or_default();
    // A card that it was trained on may be elsewhere.
    let device = args.device.unwrap_or(match recipe.engine.device {
        Device::Cpu => Device::Cpu,
        Device::Auto | Device::Cuda(_) => Device::Auto,
    });
    let hosted = PolicyHost::open(dir, &recipe, setting, args.episodes, device).map_err(usage)?;
    let seed = Seed::new(args.seed.unwrap_or_else(from_clock));
    let ((say, said), (type_in, typed)) = (channel(), channel());
    let chair = Arc::new(Chair { said: say, typed: Mutex::new(typed) });
    let playing = std::thread::spawn(move || hosted.play(chair, seed));

    match out.json {
        true => out.object(&Event::Start { env: &recipe.env.name, episodes: args.episodes })?,
        false => {
            let (episodes, policy) = (plural(args.episodes, "episode"), dir.display());
            out.line(format!("{}: {episodes} against the policy of {policy}.", styled(BOLD, title)))?;
            out.hint(format!("? shows the rules, q leaves. (--seed {} deals this again.)", seed.value()));
        }
    }
    let mut scores = Vec::new();
    let mut now: Option<HumanView> = None;
    let left = loop {
        match said.recv() {
            Err(_) => break false,
            Ok(Said::Over(view, score)) => {
                scores.push(score);
                ended(&view, scores.len(), score, out)?;
                now = None;
                continue;
            }
            Ok(Said::Turn(view)) => {
                if out.json {
                    let (seat, observation, legal) = (view.seat, &*view.text, &*view.legal);
                    out.object(&Event::Turn { seat, observation, legal })?;
                } else {
                    if now.is_none() {
                        out.line(format!("\n{}", styled(BOLD, format!("Episode {}", scores.len() + 1))))?;
                    }
                    show(&view, out)?;
                }
                now = Some(view);
            }
            Ok(Said::Refused(reason)) => refuse(&reason, out)?,
        }
        let Some(view) = &now else { continue };
        match ask(view, &rules, out)? {
            Some(text) => _ = type_in.send(text),
            None => break true,
        }
    };
    drop(type_in);
    let record = match left {
        true => None,
        false => Some(playing.join().map_err(|_| anyhow::anyhow!("the policy's thread panicked"))??),
    };
    if let Some(error) = record.as_ref().and_then(|r| r.error.as_ref()) {
        anyhow::bail!("the game could not be played to its end: {error}");
    }
    let notes: Option<Vec<String>> = record.filter(|_| args.reveal).map(|r| {
        let notes = r.requests.iter().filter(|c| c.kind == RequestKind::Reflect);
        notes.map(|c| c.completion.text.clone()).collect()
    });
    close(&scores, notes.as_deref(), out)
}

/// The next line that is for the game; `None` when the person leaves.
fn ask(view: &HumanView, rules: &dyn Fn(u8) -> String, out: &Output) -> anyhow::Result<Option<String>> {
    loop {
        if !out.json {
            let few = view.legal.join("/");
            out.ask(if few.len() <= 60 { format!("your move ({few})> ") } else { "your move> ".to_owned() })?;
        }
        let mut line = Vec::new();
        if stdin().lock().read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        // Whatever is typed is read; what is no text is no move either, and the game says so.
        let line = String::from_utf8_lossy(&line).into_owned();
        match line.trim() {
            "q" | "quit" | "exit" => return Ok(None),
            "?" | "help" => {
                let rules = rules(view.seat);
                refuse(&format!("{}\n\npossible here: {}", rules.trim_end(), listed(&view.legal)), out)?;
            }
            _ => return Ok(Some(line)),
        }
    }
}

fn show(view: &HumanView, out: &Output) -> anyhow::Result<()> {
    match &view.rendering {
        Some(picture) => out.line(format!("\n{picture}\n")),
        None => out.line(&view.text),
    }
}

fn refuse(reason: &str, out: &Output) -> anyhow::Result<()> {
    match out.json {
        true => out.object(&Event::Refused { reason }),
        false => out.line(styled(DIM, reason)),
    }
}

fn ended(view: &HumanView, episode: usize, score: f32, out: &Output) -> anyhow::Result<()> {
    if out.json {
        return out.object(&Event::End { episode, observation: &view.text, score });
    }
    show(view, out)?;
    out.line(match score {
        s if s > 0.0 => styled(GOOD, format!("You won ({s:+}).")),
        s if s < 0.0 => format!("You lost ({s:+})."),
        _ => "Nobody won.".to_owned(),
    })
}

fn close(scores: &[f32], notes: Option<&[String]>, out: &Output) -> anyhow::Result<()> {
    if out.json {
        return out.object(&Event::Close { scores, notes });
    }
    if scores.is_empty() {
        return out.line("\nNothing was played to the end.");
    }
    let rows = scores.iter().enumerate().map(|(i, s)| vec![(i + 1).to_string(), format!("{s:+}")]);
    out.line(format!("\n{}", table(&["episode", "you"], rows)))?;
    match notes {
        Some(notes) => notes
            .iter()
            .enumerate()
            .try_for_each(|(i, note)| out.line(format!("after episode {} it noted: {note}", i + 1))),
        None => {
            out.hint("What it noted about you stays hidden; --reveal tells.");
            Ok(())
        }
    }
}
