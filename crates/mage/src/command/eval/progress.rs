//! Progress of one policy's evaluation: a bar with counts and the current wait on a terminal, otherwise a line after two
//! seconds and then every thirty.

use crate::{
    bar::columns,
    output::Output,
    table::{duration, rounded, significant},
    text::{printable, shorten},
};
use indicatif::ProgressBar;
use mage_remote::OpenAiClient;
use mage_train::policy::CompletionCounter;
use std::{
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tokio::{runtime::Handle, task::JoinHandle};

/// Time between two refreshes of the bar.
const REFRESH: Duration = Duration::from_millis(250);

/// Time until the first line without a terminal.
const FIRST_LINE: Duration = Duration::from_secs(2);

/// Time between two lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Time without a completion after which the bar says what the evaluation waits for.
const STALL_NOTICE_AFTER: Duration = Duration::from_secs(10);

/// Displays the progress of an evaluation until it is dropped.
pub(super) struct EvalProgress {
    state: Arc<ProgressState>,
    ticker: JoinHandle<()>,
}

struct ProgressState {
    out: Output,
    bar: ProgressBar,
    name: String,
    total: u64,
    started: Instant,
    /// Completions of a model; `None` for policies without one, which are not counted.
    counter: Option<Arc<CompletionCounter>>,
    /// Clients whose requests the policy waits for.
    clients: Vec<OpenAiClient>,
    /// Finished tasks.
    done: AtomicU64,
    /// Of these, finished by an earlier command.
    resumed: AtomicU64,
    failed: AtomicU64,
}

impl EvalProgress {
    pub(super) fn start(
        out: Output,
        name: &str,
        total: u64,
        counter: Option<&Arc<CompletionCounter>>,
        clients: &[OpenAiClient],
        runtime: &Handle,
    ) -> Self {
        let state = Arc::new(ProgressState {
            out,
            bar: out.progress_with_message(total, "evaluating"),
            name: name.to_owned(),
            total,
            started: Instant::now(),
            counter: counter.cloned(),
            clients: clients.to_vec(),
            done: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        let ticker = runtime.spawn(refresh(Arc::clone(&state)));
        EvalProgress { state, ticker }
    }

    /// Counts a finished task.
    pub(super) fn finished(&self, resumed: bool) {
        let done = self.state.done.fetch_add(1, Relaxed) + 1;
        self.state.resumed.fetch_add(u64::from(resumed), Relaxed);
        self.state.bar.set_position(done);
    }

    /// Counts a failed task.
    pub(super) fn failed(&self) {
        self.state.failed.fetch_add(1, Relaxed);
    }
}

impl Drop for EvalProgress {
    fn drop(&mut self) {
        self.ticker.abort();
        self.state.bar.finish_and_clear();
    }
}

async fn refresh(state: Arc<ProgressState>) {
    let terminal = std::io::stderr().is_terminal();
    let (mut completions, mut last_completion) = (0, state.started);
    let mut next_line = state.started + FIRST_LINE;
    loop {
        tokio::time::sleep(REFRESH).await;
        let (count, now) = (state.counter.as_ref().map_or(0, |c| c.completions()), Instant::now());
        if count > completions {
            (completions, last_completion) = (count, now);
        }
        let (counts, wait) = (state.counts(), state.wait(now - last_completion).unwrap_or_default());
        if terminal {
            // What is waited for is more important than the counts.
            let text = if wait.is_empty() { counts } else { printable(&wait) };
            state.bar.set_message(shorten(&text, columns(), false));
        } else if now >= next_line {
            next_line = now + LINE_INTERVAL;
            let done = state.done.load(Relaxed);
            let wait = if wait.is_empty() { wait } else { format!("; {wait}") };
            state.out.hint(format!("{}: {done} of {} tasks, {counts}{wait}", state.name, state.total));
        }
    }
}

impl ProgressState {
    /// Completions, token rate, remaining time and failures. Tasks of an earlier command do not count as speed.
    fn counts(&self) -> String {
        let seconds = self.started.elapsed().as_secs_f64();
        let (done, failed) = (self.done.load(Relaxed), self.failed.load(Relaxed));
        let now = done - self.resumed.load(Relaxed).min(done);
        let mut parts = vec![format!("{} tasks/s", significant(now as f64 / seconds))];
        if let Some(counter) = self.counter.as_ref().filter(|c| c.completions() > 0) {
            let tokens = rounded(counter.tokens() as f64 / seconds);
            parts.push(format!("{} completions", counter.completions()));
            parts.push(format!("{tokens}tok/s"));
        }
        if now > 0 {
            let left = self.total.saturating_sub(done + failed) as f64;
            parts.push(format!("{} left", duration(left * seconds / now as f64)));
        }
        if failed > 0 {
            parts.push(format!("{failed} failed"));
        }
        parts.join(", ")
    }

    /// What the evaluation is waiting for, if it is; `silence` is the time since the last completion.
    fn wait(&self, silence: Duration) -> Option<String> {
        for client in &self.clients {
            if let Some(outstanding) = client.outstanding() {
                let left = outstanding.give_up_at.saturating_duration_since(Instant::now()).as_secs_f64();
                return Some(wait_text(&outstanding.problem, client.endpoint().address(), left));
            }
        }
        let first = self.counter.as_ref()?.completions() == 0;
        if silence < if first { REFRESH } else { STALL_NOTICE_AFTER } {
            return None;
        }
        let (which, seconds) = (if first { "first" } else { "next" }, duration(silence.as_secs_f64()));
        let Some(client) = self.clients.first() else {
            return Some(format!("waiting {seconds} for the {which} completion"));
        };
        let (address, limits) = (client.endpoint().address(), client.endpoint().limits);
        let [timeout, deadline] = [limits.attempt_timeout, limits.deadline].map(|d| duration(d.as_secs_f64()));
        Some(format!(
            "waiting {seconds}, at most {deadline}, for the {which} response of {address} (attempts of {timeout})"
        ))
    }
}

/// What is waited for: the time and the reason first, since a narrow terminal cuts the line.
fn wait_text(problem: &str, address: &str, seconds: f64) -> String {
    format!("retrying for {}: {problem} ({address})", duration(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(counter: Option<Arc<CompletionCounter>>) -> ProgressState {
        let out = Output::silent();
        ProgressState {
            out,
            bar: out.progress_with_message(50, "evaluating"),
            name: "tiny".to_owned(),
            total: 50,
            started: Instant::now() - Duration::from_secs(10),
            counter,
            clients: Vec::new(),
            done: AtomicU64::new(8),
            resumed: AtomicU64::new(7),
            failed: AtomicU64::new(2),
        }
    }

    #[test]
    fn only_a_model_is_waited_for() {
        let minute = Duration::from_secs(60);
        assert_eq!(state(None).wait(minute), None);
        let wait = state(Some(Arc::default())).wait(minute).unwrap();
        assert!(wait.starts_with("waiting ") && wait.ends_with(" for the first completion"), "{wait}");
    }

    #[test]
    fn time_and_reason_of_a_wait_are_visible_on_a_narrow_terminal() {
        let text = wait_text("connection refused", "http://a.very.long.host.name.example:8000/v1", 880.0);
        assert!(text.starts_with("retrying for 14.7 min: connection refused ("), "{text}");
    }

    #[test]
    fn tasks_of_an_earlier_command_do_not_count_as_speed() {
        assert_eq!(state(Some(Arc::default())).counts(), "0.10 tasks/s, 6.7 min left, 2 failed");
    }
}
