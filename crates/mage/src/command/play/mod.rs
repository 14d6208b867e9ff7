//! `mage play`: interactive play, by a person at a terminal or by a program with `--json`.

mod policy;

use crate::{
    App,
    cli::PlayArgs,
    line_editor,
    output::{BOLD, DIM, GOOD, Output, styled},
    table::{score, table},
    task_selection::{print_warnings, select},
    text::{shorten, stdout_width},
};
use futures_executor::block_on;
use mage_core::{Completion, EpisodeConfig, MemoryMode, MetaEpisode, Request};
use mage_engine::BoxFuture;
use mage_env::{ActionPhrase, End, Env, Outcome, ParsedAction, Seed, Task, solvers::OracleReport};
use mage_remote::StatusLog;
use mage_train::{policy::Policy, rollout::Observer, train::TrainEnv};
use serde::Serialize;
use std::{
    io::{BufRead, IsTerminal, Write, stdin},
    sync::Mutex,
};

pub(crate) fn run(app: &App, args: &PlayArgs, out: &Output) -> anyhow::Result<()> {
    if let Some(address) = &args.against {
        return policy::run(app, args, address, out);
    }
    let env_name = args.env.as_deref().unwrap_or("kuhn");
    let (env_spec, population) = select(app, env_name, &args.selection, None)?;
    let env_info = env_spec.info();
    let split = args.selection.split();
    print_warnings(&*env_spec, &population, split, out)?;
    let prompts = app.prompts.get(env_name)?;
    let env = TrainEnv { env_spec, prompts, population, commit: None, status_log: StatusLog::default() };
    let max_turns = env.max_turns(split, args.max_turns.unwrap_or(0))?;
    let seed = Seed::new(args.seed.unwrap_or_else(seed_from_clock));
    let task = env.population.sample_task(split, env_info.seats, seed)?;
    let world = env.env_spec.build(&task)?;
    let rules = env.prompts.rules_for_humans(task.seat).unwrap_or_default();
    let config =
        EpisodeConfig { episodes: args.episodes, max_turns, memory: MemoryMode::None, ..EpisodeConfig::default() };
    let session = PlaySession {
        out,
        task: &task,
        rules,
        episodes: args.episodes,
        max_turns,
        results: Mutex::default(),
        failure: Mutex::default(),
    };

    session.start(&env_info.title, seed)?;
    let played = block_on(env.meta_episodes(config).play_in(world, &task, seed, &mut Person(&session), &session));
    if let Some(failure) = session.failure.lock().expect("no holder panics").take() {
        return Err(failure);
    }
    if let (Some(problem), None) = (&played.trajectory.error, &played.policy_error) {
        anyhow::bail!("the game failed: {problem}");
    }
    let ceilings = || env.env_spec.oracles(&env.population, split, args.episodes);
    if out.json {
        let ceilings = if session.results().is_empty() { Ok(None) } else { ceilings() };
        return session.finish_json(args.reveal, &ceilings);
    }
    // Computing the bounds can take half a minute; the results are printed first.
    if !session.finish(args.reveal, &env_info.unit)? {
        return Ok(());
    }
    match out.spinner("computing upper bounds (Ctrl-C to exit)", ceilings) {
        Ok(Some(ceilings)) => session.print_ceilings(&ceilings),
        Ok(None) => Ok(()),
        Err(e) => {
            out.warn(format!("cannot compute upper bounds: {e}"));
            Ok(())
        }
    }
}

/// A seed from the clock.
pub(super) fn seed_from_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Six digits, for easy entry with --seed.
    now.map_or(0, |t| u64::from(t.subsec_nanos()) / 1000 + t.as_secs()) % 1_000_000
}

/// A person's meta-episode.
struct PlaySession<'a> {
    out: &'a Output,
    task: &'a Task,
    rules: String,
    episodes: u32,
    max_turns: u32,
    results: Mutex<Vec<PlayedEpisode>>,
    /// The first failure to read input or write output; the next request ends the game.
    failure: Mutex<Option<anyhow::Error>>,
}

/// The person as a policy.
struct Person<'a>(&'a PlaySession<'a>);

impl Policy for Person<'_> {
    fn respond<'a>(
        &'a mut self,
        request: &'a Request,
        meta: &MetaEpisode,
    ) -> BoxFuture<'a, mage_train::Result<Completion>> {
        let action = self.0.respond(request, meta);
        let completion = match action {
            Ok(Some(action)) => Ok(Completion::from_text(format!("<action>{action}</action>"))),
            Ok(None) => Err(mage_train::Error::Interrupted),
            Err(e) => {
                self.0.fail(e);
                Err(mage_train::Error::Interrupted)
            }
        };
        Box::pin(async { completion })
    }
}

impl Observer for PlaySession<'_> {
    fn submitted(&self, meta: &MetaEpisode, request: &Request) {
        if let Err(e) = self.show_turn(meta, request) {
            self.fail(e);
        }
    }
}

#[derive(Clone, Copy, Serialize)]
struct PlayedEpisode {
    score: f32,
    outcome: Option<Outcome>,
}

/// Events of `--json`, one object per line. Actions are read from stdin, one per line.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum PlayEvent<'a> {
    Start {
        env: &'a str,
        seat: u8,
        episodes: u32,
    },
    Episode {
        episode: u32,
        observation: &'a str,
        legal: Option<Vec<String>>,
    },
    Observation {
        observation: &'a str,
        legal: Option<Vec<String>>,
    },
    Rejected {
        reason: &'a str,
    },
    EpisodeEnd {
        episode: u32,
        score: f32,
        outcome: Option<Outcome>,
    },
    Finished {
        results: &'a [PlayedEpisode],
        opponent: Option<&'a str>,
        ceilings: Option<&'a OracleReport>,
        /// Why the upper bounds could not be computed.
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

impl PlaySession<'_> {
    fn results(&self) -> Vec<PlayedEpisode> {
        self.results.lock().expect("no holder panics").clone()
    }

    fn fail(&self, error: anyhow::Error) {
        self.failure.lock().expect("no holder panics").get_or_insert(error);
    }

    /// The person's action; `None` if the person quits or the input ends.
    fn respond(&self, request: &Request, meta: &MetaEpisode) -> anyhow::Result<Option<String>> {
        if self.failure.lock().expect("no holder panics").is_some() {
            return Ok(None);
        }
        if let Some(episode) = meta.episode().filter(|episode| episode.turns.is_empty()) {
            self.start_episode(request.episode, meta.env(), &episode.start.text)?;
        }
        let taken = meta.episode().map_or(0, |episode| episode.turns.len());
        self.read_action(meta.env(), self.max_turns.saturating_sub(taken as u32))
    }

    /// Shows the result of an action.
    fn show_turn(&self, meta: &MetaEpisode, request: &Request) -> anyhow::Result<()> {
        let Some(episode) = meta.episode() else { return Ok(()) };
        self.show_observation(meta.env(), &episode.last_observation().text)?;
        match episode.end {
            Some(end) => self.end_episode(request.episode, end, episode.score()),
            None => Ok(()),
        }
    }

    fn start(&self, title: &str, seed: Seed) -> anyhow::Result<()> {
        let task = self.task;
        if self.out.json {
            let (env, seat, episodes) = (task.env.as_str(), task.seat, self.episodes);
            return self.out.object(&PlayEvent::Start { env, seat, episodes });
        }
        let against = if task.opponent.is_some() { " against the same hidden opponent" } else { "" };
        let episodes = plural(self.episodes, "episode");
        self.out.line(format!("{}: {episodes}{against}.", styled(BOLD, title)))?;
        self.out.hint(format!(
            "Type an action or a prefix of it; ? shows the rules, q quits. (--seed {} repeats this game.)",
            seed.value()
        ));
        Ok(())
    }

    fn start_episode(&self, n: u32, env: &dyn Env, text: &str) -> anyhow::Result<()> {
        if self.out.json {
            return self.out.object(&PlayEvent::Episode { episode: n + 1, observation: text, legal: env.legal() });
        }
        self.out.line(format!("\n{}", styled(BOLD, format!("Episode {} of {}", n + 1, self.episodes))))?;
        self.show(env, text)
    }

    fn show_observation(&self, env: &dyn Env, text: &str) -> anyhow::Result<()> {
        if self.out.json {
            return self.out.object(&PlayEvent::Observation { observation: text, legal: env.legal() });
        }
        self.show(env, text)
    }

    fn show(&self, env: &dyn Env, text: &str) -> anyhow::Result<()> {
        match env.render() {
            Some(board) => self.out.line(format!("\n{board}\n")),
            None => self.out.line(text),
        }
    }

    /// The next valid action; `None` if the player quits or the input ends.
    fn read_action(&self, env: &dyn Env, turns_left: u32) -> anyhow::Result<Option<String>> {
        loop {
            let (legal, phrase) = (env.legal().unwrap_or_default(), env.action_phrase());
            if !self.out.json {
                // The turns of a short game are obvious.
                let left = match self.max_turns > SHORT_GAME {
                    true => format!(", {} left", plural(turns_left, "turn")),
                    false => String::new(),
                };
                print_prompt(&format!("your move{left}"), &prompt_choices(&legal, phrase), self.out)?;
            }
            let line = match self.read_line(phrase) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                    self.reject("the input is not valid UTF-8")?;
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            match line.trim() {
                "q" | "quit" | "exit" => return Ok(None),
                "?" | "help" => {
                    let turns = plural(self.max_turns, "turn");
                    let legal = describe_legal(&legal, phrase);
                    self.reject(&format!("{}\n\nAn episode has at most {turns}. {legal}", self.rules.trim_end()))?;
                }
                input => match parse_input(env, input, &legal, phrase) {
                    ParsedAction::Invalid { reason } => self.reject(&reason)?,
                    ParsedAction::Act(a) if !env.allows(&a) => {
                        self.reject(&format!("{a} is not legal here. {}", describe_legal(&legal, phrase)))?;
                    }
                    ParsedAction::Act(action) => return Ok(Some(action)),
                },
            }
        }
    }

    /// A line of input, on a terminal with arrow keys for such moves; `None` at the end of the input.
    fn read_line(&self, phrase: Option<ActionPhrase>) -> std::io::Result<Option<String>> {
        if !self.out.json && stdin().is_terminal() {
            let has_arrows = |p: &ActionPhrase| ["up", "down", "left", "right"].iter().all(|w| p.words.contains(w));
            return line_editor::read_line(phrase.filter(has_arrows).map_or(0, |phrase| phrase.max_words));
        }
        let mut line = String::new();
        if stdin().lock().read_line(&mut line)? > 0 {
            return Ok(Some(line));
        }
        if !self.out.json {
            writeln!(anstream::stdout())?;
        }
        Ok(None)
    }

    fn reject(&self, reason: &str) -> anyhow::Result<()> {
        match self.out.json {
            true => self.out.object(&PlayEvent::Rejected { reason }),
            false => self.out.line(styled(DIM, reason)),
        }
    }

    fn end_episode(&self, n: u32, end: End, score: f32) -> anyhow::Result<()> {
        let outcome = match end {
            End::Terminated { outcome, .. } => Some(outcome),
            End::Truncated => None,
        };
        self.results.lock().expect("no holder panics").push(PlayedEpisode { score, outcome });
        if self.out.json {
            return self.out.object(&PlayEvent::EpisodeEnd { episode: n + 1, score, outcome });
        }
        let alone = self.task.opponent.is_none();
        self.out.line(match outcome {
            Some(Outcome::Won) if alone => styled(GOOD, "Solved."),
            Some(Outcome::Won) => styled(GOOD, "You won."),
            Some(Outcome::Lost) if alone => format!("Not solved; score {}.", points(score)),
            Some(Outcome::Lost) => "You lost.".to_owned(),
            Some(Outcome::Draw) => "Draw.".to_owned(),
            None => format!("No turns left; score {}.", points(score)),
        })
    }

    fn opponent(&self, reveal: bool) -> Option<&str> {
        self.task.opponent.as_ref().filter(|_| reveal).map(|o| o.name.as_str())
    }

    fn finish_json(&self, reveal: bool, ceilings: &mage_env::Result<Option<OracleReport>>) -> anyhow::Result<()> {
        let (ceilings, error) = match ceilings {
            Ok(ceilings) => (ceilings.as_ref(), None),
            Err(e) => (None, Some(e.to_string())),
        };
        self.out.object(&PlayEvent::Finished {
            results: &self.results(),
            opponent: self.opponent(reveal),
            ceilings,
            error,
        })
    }

    /// Prints the scores; `false` if no episode was finished.
    fn finish(&self, reveal: bool, unit: &str) -> anyhow::Result<bool> {
        let results = self.results();
        if results.is_empty() {
            self.out.line("No episode was finished.")?;
            return Ok(false);
        }
        let rows = results.iter().enumerate().map(|(i, r)| vec![(i + 1).to_string(), points(r.score)]);
        self.out.line(format!("\n{}", table(&["episode", "you"], rows)))?;
        let total: f32 = results.iter().map(|r| r.score).sum();
        let mean = total / results.len() as f32;
        let closing = format!("total {}, mean {mean:+.2} ({unit})", points(total));
        self.out.line(if total > 0.0 { styled(GOOD, closing) } else { closing })?;
        match (self.opponent(reveal), &self.task.opponent) {
            (Some(name), _) => self.out.line(format!("Your opponent was: {name}."))?,
            (None, Some(_)) => self.out.hint("Use --reveal to print the opponent."),
            (None, None) => {}
        }
        Ok(true)
    }

    /// Prints the scores next to the upper bounds.
    fn print_ceilings(&self, ceilings: &OracleReport) -> anyhow::Result<()> {
        let Some(seat) = ceilings.seats.iter().find(|s| s.seat == Some(self.task.seat)) else { return Ok(()) };
        let at_least = ceilings.bayes_adaptive_is_lower_bound();
        let bayes_adaptive = if at_least { "Bayes-adaptive optimum, at least" } else { "Bayes-adaptive optimum" };
        let results = self.results();
        let rows = results.iter().enumerate().map(|(i, r)| {
            vec![(i + 1).to_string(), points(r.score), score(seat.memoryless[i]), score(seat.sum.by_episode[i])]
        });
        self.out.line(format!("\n{}", table(&["episode", "you", "memoryless optimum", bayes_adaptive], rows)))?;
        let exact = if at_least || !ceilings.sampled_opponents.is_empty() { "estimated" } else { "exact" };
        self.out.hint(format!(
            "The last two columns are {exact} means over opponents and deals; the scores of a few episodes vary widely around them."
        ));
        ceilings.notes.iter().for_each(|note| self.out.hint(format!("Note: {note}.")));
        Ok(())
    }
}

/// A list of actions, truncated.
pub(super) fn list_actions(actions: &[String]) -> String {
    const MAX_LISTED: usize = 20;
    let first = actions.iter().take(MAX_LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match actions.len().saturating_sub(MAX_LISTED) {
        0 => first,
        more => format!("{first}, and {more} more"),
    }
}

/// Prints the input prompt, with the choices on a line of their own if the terminal is narrow.
pub(super) fn print_prompt(question: &str, choices: &str, out: &Output) -> anyhow::Result<()> {
    let narrow = stdout_width().is_some_and(|width| question.len() + choices.len() + MIN_INPUT > width);
    if narrow {
        out.line(choices.trim_start())?;
    }
    out.print(format!("{question}{}> ", if narrow { "" } else { choices }))
}

/// Columns for the input after the prompt.
const MIN_INPUT: usize = 20;
/// Longest example of an action.
const MAX_EXAMPLE: usize = 40;
/// Games of at most this many turns are short.
const SHORT_GAME: u32 = 4;

/// Legal actions for the input prompt if they are few and short, otherwise an example.
pub(super) fn prompt_choices(legal: &[String], phrase: Option<ActionPhrase>) -> String {
    if let Some(phrase) = phrase {
        return format!(" ({})", up_to(phrase, "/"));
    }
    match legal.join("/") {
        list if legal.len() <= 6 && list.len() <= 60 => match list.is_empty() {
            true => String::new(),
            false => format!(" ({list})"),
        },
        _ => format!(" (such as {}; ? lists all)", shorten(&legal[0], MAX_EXAMPLE, false)),
    }
}

/// The legal actions as a sentence.
fn describe_legal(legal: &[String], phrase: Option<ActionPhrase>) -> String {
    match phrase {
        Some(phrase) => format!("Legal here: {} in one line; first letters are accepted.", up_to(phrase, ", ")),
        None if legal.is_empty() => "Any text is legal here.".to_owned(),
        None => format!("Legal here: {}", list_actions(legal)),
    }
}

fn up_to(phrase: ActionPhrase, separator: &str) -> String {
    let words = phrase.words.join(separator);
    if phrase.max_words == 1 { format!("one of {words}") } else { format!("up to {} of {words}", phrase.max_words) }
}

/// Parses input, which may consist of prefixes of actions. Too many words are an error rather than truncated.
fn parse_input(env: &dyn Env, input: &str, legal: &[String], phrase: Option<ActionPhrase>) -> ParsedAction {
    let text = complete(input, legal, phrase);
    match phrase {
        Some(p) if text.split_whitespace().count() > p.max_words && text.split(' ').all(|w| p.words.contains(&w)) => {
            ParsedAction::invalid(format!("too many moves for one turn: {}", up_to(p, ", ")))
        }
        Some(_) => env.parse(&text),
        None => match env.parse(&text) {
            ParsedAction::Act(action) if env.allows(&action) => ParsedAction::Act(action),
            rejected => ambiguity(input, legal).map_or(rejected, ParsedAction::invalid),
        },
    }
}

/// The error message for an ambiguous prefix.
fn ambiguity(input: &str, legal: &[String]) -> Option<String> {
    let input = input.to_lowercase();
    let matches = |name: &str| !input.is_empty() && name.to_lowercase().starts_with(&input);
    let candidates: Vec<String> =
        legal.iter().filter(|a| matches(a) || in_brackets(a).is_some_and(matches)).cloned().collect();
    (candidates.len() > 1).then(|| format!("{input} is ambiguous: {}", list_actions(&candidates)))
}

/// The argument of an action such as `click[next >]`.
fn in_brackets(action: &str) -> Option<&str> {
    action.split_once('[')?.1.strip_suffix(']')
}

/// Completes a prefix: of a legal action, of the argument of a legal action such as `click[next >]`, or of each word
/// where actions are phrases. Other text is returned unchanged.
pub(super) fn complete(input: &str, legal: &[String], phrase: Option<ActionPhrase>) -> String {
    if let Some(phrase) = phrase {
        let parts = input.split([',', ' ']).filter(|part| !part.is_empty());
        let word = |prefix: &str| match_prefix(prefix, phrase.words.iter().map(|w| (*w, *w)));
        // `ddd` is three words by their first letters.
        let letters = |part: &str| part.chars().map(|c| word(c.encode_utf8(&mut [0; 4]))).collect::<Option<Vec<_>>>();
        let words: Option<Vec<Vec<&str>>> =
            parts.map(|part| word(part).map(|w| vec![w]).or_else(|| letters(part))).collect();
        let words = words.map(|words| words.concat());
        return words.map_or_else(|| input.to_owned(), |words| words.join(" "));
    }
    let actions = legal.iter().map(|a| (a.as_str(), a.as_str()));
    let arguments = legal.iter().filter_map(|a| Some((in_brackets(a)?, a.as_str())));
    match_prefix(input, actions).or_else(|| match_prefix(input, arguments)).unwrap_or(input).to_owned()
}

/// The action whose name starts with the input: the only one, or the one that is a prefix of all others.
fn match_prefix<'a>(input: &str, named: impl Iterator<Item = (&'a str, &'a str)>) -> Option<&'a str> {
    let input = input.to_lowercase();
    let mut matches: Vec<(String, &str)> = named.map(|(name, action)| (name.to_lowercase(), action)).collect();
    matches.retain(|(name, _)| !input.is_empty() && name.starts_with(&input));
    let (shortest, action) = matches.iter().min_by_key(|(name, _)| name.len())?;
    matches.iter().all(|(name, _)| name.starts_with(shortest.as_str())).then_some(*action)
}

/// A signed score with at most three decimals.
fn points(x: f32) -> String {
    let rounded = (f64::from(x) * 1000.0).round() / 1000.0;
    format!("{:+}", if rounded == 0.0 { 0.0 } else { rounded })
}

pub(super) fn plural(n: u32, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_actions_are_completed() {
        let owned = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let kuhn = owned(&["PASS", "BET"]);
        assert_eq!(complete("b", &kuhn, None), "BET");
        assert_eq!(complete("", &kuhn, None), "");
        assert_eq!(complete("raise", &kuhn, None), "raise");
        let shop = owned(&["click[back to search]", "click[next >]", "click[g0001]", "click[g0002]", "click[buy now]"]);
        assert_eq!(complete("Next", &shop, None), "click[next >]");
        assert_eq!(complete("g0002", &shop, None), "click[g0002]");
        assert_eq!(complete("g000", &shop, None), "g000", "ambiguous");
        assert_eq!(complete("click[bu", &shop, None), "click[buy now]");
        assert_eq!(complete("search[red shoes]", &shop, None), "search[red shoes]");
        let cells: Vec<String> = (1..=9).map(|n| format!("({n},1)")).collect();
        assert_eq!(prompt_choices(&cells, None), " (such as (1,1); ? lists all)");
        assert_eq!(prompt_choices(&kuhn, None), " (PASS/BET)");
    }

    #[test]
    fn words_of_a_phrase_are_completed_separately() {
        let rooms = Some(ActionPhrase { words: &["up", "down", "left", "right", "still"], max_words: 3 });
        let complete = |input| complete(input, &[], rooms);
        assert_eq!(complete("u"), "up");
        assert_eq!(complete("U, l"), "up left");
        assert_eq!(complete("l left s"), "left left still");
        assert_eq!(complete("ddd"), complete("d d d"));
        assert_eq!((complete("du"), complete("up")), ("down up".to_owned(), "up".to_owned()));
        assert_eq!((complete("u x"), complete("dx")), ("u x".to_owned(), "dx".to_owned()));
        assert_eq!(complete("u u u u"), "up up up up", "too many words are kept and rejected later");
        assert_eq!(prompt_choices(&[], rooms), " (up to 3 of up/down/left/right/still)");
    }

    #[test]
    fn scores_have_a_sign_and_at_most_three_decimals() {
        assert_eq!([10.6, -2.1000001, 0.0, -0.0001].map(points), ["+10.6", "-2.1", "+0", "+0"]);
    }
}
