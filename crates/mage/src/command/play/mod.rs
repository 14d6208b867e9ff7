//! `mage play`: interactive play, by a person at a terminal or by a program with `--json`.

mod policy;

use crate::{
    App,
    cli::PlayArgs,
    line_editor,
    output::{BOLD, DIM, GOOD, Output, styled},
    table::{score, table},
    task_selection::{print_warnings, select},
};
use mage_env::{ActionPhrase, End, Env, Outcome, ParsedAction, Seed, Task, solvers::OracleReport};
use serde::Serialize;
use std::io::{BufRead, IsTerminal, Write, stdin};

pub(crate) fn run(app: &App, args: &PlayArgs, out: &Output) -> anyhow::Result<()> {
    if let Some(dir) = &args.against {
        return policy::run(app, args, dir, out);
    }
    let (env_spec, population) = select(app, &args.env, &args.selection)?;
    let env_info = env_spec.info();
    let split = args.selection.split();
    print_warnings(&*env_spec, &population, split, out)?;
    let max_turns = match args.max_turns {
        Some(turns) => turns,
        None => env_spec.max_turns(&population, split)?,
    };
    let seed = Seed::new(args.seed.unwrap_or_else(from_clock));
    let task = population.draw(split, env_info.seats, seed)?;
    let mut env = env_spec.build(&task)?;
    let rules = app.prompts.get(&args.env).and_then(|p| p.rules_for_humans(task.seat)).unwrap_or_default();
    let mut table = Sitting { out, task: &task, rules, episodes: args.episodes, max_turns, scores: Vec::new() };

    table.welcome(&env_info.title, seed)?;
    'episodes: for n in 0..args.episodes {
        let start = env.reset(n);
        table.episode(n, &*env, &start.text)?;
        let (mut turns, mut earned) = (0, 0.0);
        loop {
            let Some(action) = table.ask(&*env)? else { break 'episodes };
            let step = env.step(&action);
            turns += 1;
            earned += step.reward;
            let end = step.end.or((turns >= max_turns).then_some(End::Truncated));
            table.seen(&*env, &step.observation.text)?;
            if let Some(end) = end {
                table.end(n, end, earned)?;
                break;
            }
        }
    }
    let ceilings = || env_spec.oracles(&population, split, args.episodes);
    if out.json {
        let ceilings = if table.scores.is_empty() { Ok(None) } else { ceilings() };
        return table.close_for_programs(args.reveal, &ceilings);
    }
    // What was possible may take half a minute to work out; what was played is known now.
    if !table.close(args.reveal, &env_info.unit)? {
        return Ok(());
    }
    match out.waiting("working out what was possible (Ctrl-C leaves)", ceilings) {
        Ok(Some(ceilings)) => table.compare(&ceilings),
        Ok(None) => Ok(()),
        Err(e) => {
            out.warn(format!("what was possible could not be worked out: {e}"));
            Ok(())
        }
    }
}

/// A seed nobody chose.
pub(super) fn from_clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Six digits: easy to type again with --seed.
    now.map_or(0, |t| u64::from(t.subsec_nanos()) / 1000 + t.as_secs()) % 1_000_000
}

/// One person's meta-episode.
struct Sitting<'a> {
    out: &'a Output,
    task: &'a Task,
    rules: String,
    episodes: u32,
    max_turns: u32,
    scores: Vec<Played>,
}

#[derive(Clone, Copy, Serialize)]
struct Played {
    score: f32,
    outcome: Option<Outcome>,
}

/// What programs are told while playing (`--json`): one object a line; actions are read from stdin, one a line.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Event<'a> {
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
    Refused {
        reason: &'a str,
    },
    End {
        episode: u32,
        score: f32,
        outcome: Option<Outcome>,
    },
    Close {
        scores: &'a [Played],
        opponent: Option<&'a str>,
        ceilings: Option<&'a OracleReport>,
        /// Why there are no ceilings, where there should be.
        #[serde(skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
}

impl Sitting<'_> {
    fn welcome(&self, title: &str, seed: Seed) -> anyhow::Result<()> {
        let task = self.task;
        if self.out.json {
            let (env, seat, episodes) = (task.env.as_str(), task.seat, self.episodes);
            return self.out.object(&Event::Start { env, seat, episodes });
        }
        let against = if task.opponent.is_some() { " against the same hidden opponent" } else { "" };
        let episodes = plural(self.episodes, "episode");
        self.out.line(format!("{}: {episodes}{against}.", styled(BOLD, title)))?;
        self.out.hint(format!(
            "Type an action or the start of it; ? shows the rules, q leaves. (--seed {} deals this again.)",
            seed.value()
        ));
        Ok(())
    }

    fn episode(&self, n: u32, env: &dyn Env, text: &str) -> anyhow::Result<()> {
        if self.out.json {
            return self.out.object(&Event::Episode { episode: n + 1, observation: text, legal: env.legal() });
        }
        self.out.line(format!("\n{}", styled(BOLD, format!("Episode {} of {}", n + 1, self.episodes))))?;
        self.show(env, text)
    }

    fn seen(&self, env: &dyn Env, text: &str) -> anyhow::Result<()> {
        if self.out.json {
            return self.out.object(&Event::Observation { observation: text, legal: env.legal() });
        }
        self.show(env, text)
    }

    fn show(&self, env: &dyn Env, text: &str) -> anyhow::Result<()> {
        match env.render() {
            Some(picture) => self.out.line(format!("\n{picture}\n")),
            None => self.out.line(text),
        }
    }

    /// The next valid action; `None` when the player leaves or the input ends.
    fn ask(&self, env: &dyn Env) -> anyhow::Result<Option<ParsedAction>> {
        loop {
            let (legal, phrase) = (env.legal().unwrap_or_default(), env.action_phrase());
            if !self.out.json {
                self.out.ask(format!("your move{}> ", choices(&legal, phrase)))?;
            }
            let line = match self.read(phrase) {
                Ok(Some(line)) => line,
                Ok(None) => return Ok(None),
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                    self.refuse("that was not readable text")?;
                    continue;
                }
                Err(e) => return Err(e.into()),
            };
            match line.trim() {
                "q" | "quit" | "exit" => return Ok(None),
                "?" | "help" => {
                    let turns = plural(self.max_turns, "turn");
                    let possible = possible(&legal, phrase);
                    self.refuse(&format!("{}\n\nAn episode has {turns}. {possible}", self.rules.trim_end()))?;
                }
                typed => match read_typed(env, typed, &legal, phrase) {
                    ParsedAction::Invalid { reason } => self.refuse(&reason)?,
                    ParsedAction::Act(a) if !env.allows(&a) => {
                        self.refuse(&format!("{a} is not possible here. {}", possible(&legal, phrase)))?;
                    }
                    action => return Ok(Some(action)),
                },
            }
        }
    }

    /// A line of input; on a terminal, arrow keys make one too where they mean something. `None` at the end.
    fn read(&self, phrase: Option<ActionPhrase>) -> std::io::Result<Option<String>> {
        let arrows = |p: &ActionPhrase| ["up", "down", "left", "right"].iter().all(|way| p.words.contains(way));
        if let Some(phrase) = phrase.filter(arrows).filter(|_| !self.out.json && stdin().is_terminal()) {
            return line_editor::read_line(phrase.max_words);
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

    fn refuse(&self, reason: &str) -> anyhow::Result<()> {
        match self.out.json {
            true => self.out.object(&Event::Refused { reason }),
            false => self.out.line(styled(DIM, reason)),
        }
    }

    /// Ends an episode; one that was cut off counts for what was earned in it.
    fn end(&mut self, n: u32, end: End, earned: f32) -> anyhow::Result<()> {
        let (outcome, score) = match end {
            End::Terminated { outcome, score } => (Some(outcome), score),
            End::Truncated => (None, earned),
        };
        self.scores.push(Played { score, outcome });
        if self.out.json {
            return self.out.object(&Event::End { episode: n + 1, score, outcome });
        }
        self.out.line(match outcome {
            Some(Outcome::Won) => styled(GOOD, "You won."),
            Some(Outcome::Lost) => "You lost.".to_owned(),
            Some(Outcome::Draw) => "Nobody won.".to_owned(),
            None => "You ran out of turns.".to_owned(),
        })
    }

    fn opponent(&self, reveal: bool) -> Option<&str> {
        self.task.opponent.as_ref().filter(|_| reveal).map(|o| o.name.as_str())
    }

    fn close_for_programs(
        &self,
        reveal: bool,
        ceilings: &mage_env::Result<Option<OracleReport>>,
    ) -> anyhow::Result<()> {
        let (ceilings, problem) = match ceilings {
            Ok(ceilings) => (ceilings.as_ref(), None),
            Err(e) => (None, Some(e.to_string())),
        };
        self.out.object(&Event::Close { scores: &self.scores, opponent: self.opponent(reveal), ceilings, problem })
    }

    /// What came out of it; `false` if nothing did.
    fn close(&self, reveal: bool, unit: &str) -> anyhow::Result<bool> {
        if self.scores.is_empty() {
            self.out.line("Nothing was played to the end.")?;
            return Ok(false);
        }
        let rows = self.scores.iter().enumerate().map(|(i, p)| vec![(i + 1).to_string(), points(p.score)]);
        self.out.line(format!("\n{}", table(&["episode", "you"], rows)))?;
        let total: f32 = self.scores.iter().map(|p| p.score).sum();
        let mean = total / self.scores.len() as f32;
        let closing = format!("total {}, mean {mean:+.2} {unit}", points(total));
        self.out.line(if total > 0.0 { styled(GOOD, closing) } else { closing })?;
        match (self.opponent(reveal), &self.task.opponent) {
            (Some(name), _) => self.out.line(format!("Your opponent was: {name}."))?,
            (None, Some(_)) => self.out.hint("Your opponent stays hidden; --reveal tells."),
            (None, None) => {}
        }
        Ok(true)
    }

    /// What was played next to what was possible.
    fn compare(&self, ceilings: &OracleReport) -> anyhow::Result<()> {
        let Some(seat) = ceilings.seats.iter().find(|s| s.seat == Some(self.task.seat)) else { return Ok(()) };
        let at_least = ceilings.learner_is_lower_bound();
        let learner = if at_least { "best learner, at least" } else { "best learner" };
        let rows = self.scores.iter().enumerate().map(|(i, p)| {
            vec![(i + 1).to_string(), points(p.score), score(seat.memoryless[i]), score(seat.sum.by_episode[i])]
        });
        self.out.line(format!("\n{}", table(&["episode", "you", "best without memory", learner], rows)))?;
        let exact = if at_least || !ceilings.sampled_opponents.is_empty() { "estimated" } else { "exact" };
        self.out.hint(format!(
            "The last two columns are {exact} averages over opponents and luck; a few episodes are mostly luck."
        ));
        ceilings.notes.iter().for_each(|note| self.out.hint(format!("Note: {note}.")));
        Ok(())
    }
}

/// The first of the actions; a person reads no more than that.
pub(super) fn listed(actions: &[String]) -> String {
    const SHOWN: usize = 20;
    let first = actions.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match actions.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first}, and {more} more"),
    }
}

/// What stands behind the prompt for a move: a few short choices are a help, many or long ones a wall.
fn choices(legal: &[String], phrase: Option<ActionPhrase>) -> String {
    if let Some(phrase) = phrase {
        return format!(" ({})", up_to(phrase, "/"));
    }
    match legal.join("/") {
        few if legal.len() <= 6 && !few.is_empty() && few.len() <= 60 => format!(" ({few})"),
        _ => String::new(),
    }
}

/// What can be done now, in a sentence.
fn possible(legal: &[String], phrase: Option<ActionPhrase>) -> String {
    match phrase {
        Some(phrase) => format!("Possible here: {}, in one line; the first letters will do.", up_to(phrase, ", ")),
        None if legal.is_empty() => "Any text is possible here.".to_owned(),
        None => format!("Possible here: {}", listed(legal)),
    }
}

fn up_to(phrase: ActionPhrase, between: &str) -> String {
    let words = phrase.words.join(between);
    if phrase.max_words == 1 { format!("one of {words}") } else { format!("up to {} of {words}", phrase.max_words) }
}

/// Reads what a person typed, who may begin words without ending them, and should not lose moves without a word.
fn read_typed(env: &dyn Env, typed: &str, legal: &[String], phrase: Option<ActionPhrase>) -> ParsedAction {
    let text = completed(typed, legal, phrase);
    match phrase {
        Some(p) if text.split_whitespace().count() > p.max_words && text.split(' ').all(|w| p.words.contains(&w)) => {
            ParsedAction::invalid(format!("that is too much for one turn: {}", up_to(p, ", ")))
        }
        Some(_) => env.parse(&text),
        None => match env.parse(&text) {
            ParsedAction::Act(action) if env.allows(&action) => ParsedAction::Act(action),
            refused => several(typed, legal).map_or(refused, ParsedAction::invalid),
        },
    }
}

/// What to say to the beginning of several actions.
fn several(typed: &str, legal: &[String]) -> Option<String> {
    let typed = typed.to_lowercase();
    let begins = |name: &str| !typed.is_empty() && name.to_lowercase().starts_with(&typed);
    let meant: Vec<String> =
        legal.iter().filter(|a| begins(a) || in_brackets(a).is_some_and(begins)).cloned().collect();
    (meant.len() > 1).then(|| format!("{typed} may be {}; type more of it", listed(&meant)))
}

/// The name within an action such as `click[next >]`.
fn in_brackets(action: &str) -> Option<&str> {
    action.split_once('[')?.1.strip_suffix(']')
}

/// What the typed text stands for: the one legal action it begins; the one whose name in brackets it begins, as in
/// `click[next >]`; where actions are phrases, the words that its words begin; or the text itself.
pub(super) fn completed(typed: &str, legal: &[String], phrase: Option<ActionPhrase>) -> String {
    if let Some(phrase) = phrase {
        let parts = typed.split([',', ' ']).filter(|part| !part.is_empty());
        let words: Option<Vec<&str>> = parts.map(|part| begun(part, phrase.words.iter().map(|w| (*w, *w)))).collect();
        return words.map_or_else(|| typed.to_owned(), |words| words.join(" "));
    }
    let actions = legal.iter().map(|a| (a.as_str(), a.as_str()));
    let within = legal.iter().filter_map(|a| Some((in_brackets(a)?, a.as_str())));
    begun(typed, actions).or_else(|| begun(typed, within)).unwrap_or(typed).to_owned()
}

/// The action whose name begins with the typed text: the only one, or the one that all others begin with in turn.
fn begun<'a>(typed: &str, named: impl Iterator<Item = (&'a str, &'a str)>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let mut begun: Vec<(String, &str)> = named.map(|(name, action)| (name.to_lowercase(), action)).collect();
    begun.retain(|(name, _)| !typed.is_empty() && name.starts_with(&typed));
    let (shortest, action) = begun.iter().min_by_key(|(name, _)| name.len())?;
    begun.iter().all(|(name, _)| name.starts_with(shortest.as_str())).then_some(*action)
}

/// A score with its sign, as short as it can be told.
fn points(x: f32) -> String {
    let rounded = (f64::from(x) * 1000.0).round() / 1000.0;
    format!("{:+}", if rounded == 0.0 { 0.0 } else { rounded })
}

pub(super) fn plural(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_an_action_is_enough() {
        let owned = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let kuhn = owned(&["PASS", "BET"]);
        assert_eq!(completed("b", &kuhn, None), "BET");
        assert_eq!(completed("", &kuhn, None), "");
        assert_eq!(completed("raise", &kuhn, None), "raise");
        let shop = owned(&["click[back to search]", "click[next >]", "click[g0001]", "click[g0002]", "click[buy now]"]);
        assert_eq!(completed("Next", &shop, None), "click[next >]");
        assert_eq!(completed("g0002", &shop, None), "click[g0002]");
        assert_eq!(completed("g000", &shop, None), "g000", "two begin so");
        assert_eq!(completed("click[bu", &shop, None), "click[buy now]");
        assert_eq!(completed("search[red shoes]", &shop, None), "search[red shoes]");
    }
    #[test]
    fn moves_may_be_begun_one_by_one() {
        let rooms = Some(ActionPhrase { words: &["up", "down", "left", "right", "still"], max_words: 3 });
        let completed = |typed| completed(typed, &[], rooms);
        assert_eq!(completed("u"), "up");
        assert_eq!(completed("U, l"), "up left");
        assert_eq!(completed("l left s"), "left left still");
        assert_eq!(completed("u x"), "u x");
        assert_eq!(completed("u u u u"), "up up up up", "too many, which is said");
        assert_eq!(choices(&[], rooms), " (up to 3 of up/down/left/right/still)");
    }

    #[test]
    fn scores_are_short() {
        assert_eq!([10.6, -2.1000001, 0.0, -0.0001].map(points), ["+10.6", "-2.1", "+0", "+0"]);
    }
}
