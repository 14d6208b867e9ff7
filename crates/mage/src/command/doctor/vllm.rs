//! Checks of a vLLM server: model name, context length, base weights and tokenizer.

use super::{
    checks::{Checks, text},
    engine::{block_on_pool, match_within},
};
use crate::table::duration;
use mage_engine::Renderer;
use mage_native::ModelDescription;
use mage_remote::{Fingerprint, ServedModel, VllmPool};
use mage_train::recipe::Recipe;
use std::time::Duration;

/// A first completion that takes longer is slow.
const SLOW: Duration = Duration::from_secs(2);

/// Texts on which tokenizers differ: white space, line breaks, digits, punctuation, multi-byte characters.
const TEXTS: [&str; 5] = [
    "The King bets; I fold, don't I?",
    "  two  spaces\n\n\tand a tab \r\n",
    "0 12 345 6789 3.14159 -42 1e-5",
    "{\"action\": [\"BET\", null], \"x\": {}} <b>&amp;</b> // #",
    "Gr\u{fc}\u{df}e, \u{4e16}\u{754c} \u{2013} e\u{301} \u{1f642}",
];

/// What a recipe requires of its vLLM servers.
pub(super) struct VllmRequirements<'w> {
    pub(super) recipe: &'w Recipe,
    pub(super) model: &'w ModelDescription,
    /// The fingerprint of a reachable trainer, or why it returned none.
    pub(super) trained: Option<&'w Result<Fingerprint, String>>,
    /// Maximum tokens of a prompt with its completion, if known.
    pub(super) longest: Result<Option<usize>, String>,
    /// How long the first completion may take.
    pub(super) cold_start: Duration,
}

impl VllmRequirements<'_> {
    /// Checks one server; returns whether it serves the model.
    pub(super) fn check(
        &self,
        pool: &VllmPool,
        address: &str,
        served: Result<Vec<ServedModel>, String>,
        checks: &mut Checks<'_>,
    ) -> anyhow::Result<bool> {
        let vllm = &self.recipe.vllm;
        let name = if vllm.model.is_empty() { &self.recipe.model.path } else { &vllm.model };
        let found = served.and_then(|all| match all.iter().position(|s| s.name == *name) {
            Some(at) => Ok((all.len(), all[at].max_seq_len)),
            None => {
                let names: Vec<&str> = all.iter().map(|s| s.name.as_str()).collect();
                Err(format!("the server has {}, not `{name}`; set vllm.model", names.join(", ")))
            }
        });
        let serves = found.as_ref().map(|(names, _)| format!("{names} model names")).map_err(Clone::clone);
        checks.record(format!("{address} serves the model"), serves)?;
        let Ok((_, context)) = found else { return Ok(false) };
        self.check_context(address, context, checks)?;
        self.check_completion(pool, address, checks)?;
        let name = format!("{address} has the trainer's base weights");
        match self.trained {
            Some(Ok(trained)) => {
                let base = text(block_on_pool(pool.base_fingerprint(address))?);
                checks.record(name, base.and_then(|base| match_within(trained, &base, vllm.tolerance)))?;
            }
            Some(Err(_)) => checks.skip(name, "NOT COMPARED: the trainer does not score the test sequence")?,
            None => {}
        }
        if let Some(renderer) = &self.model.renderer {
            let remote = |words: &str| text(text(block_on_pool(pool.tokenize(address, words)))?);
            checks.record(format!("{address} has the local tokenizer"), compare_tokenizers(renderer, remote))?;
        }
        Ok(true)
    }

    /// Whether the server completes a prompt. A server that was just started is slow, not broken.
    fn check_completion(&self, pool: &VllmPool, address: &str, checks: &mut Checks<'_>) -> anyhow::Result<()> {
        let took = text(block_on_pool(pool.first_completion(address, self.cold_start))?);
        let detail = took.map(|took| match duration(took.as_secs_f64()) {
            took_text if took >= SLOW => {
                format!("after {took_text}, slow: the server was still compiling or is overloaded")
            }
            _ => format!("after {:.2} s", took.as_secs_f64()),
        });
        checks.record(format!("{address} completes a prompt"), detail)?;
        Ok(())
    }

    /// Whether the longest sequence fits the server's context.
    fn check_context(&self, address: &str, context: Option<usize>, checks: &mut Checks<'_>) -> anyhow::Result<()> {
        let name = format!("{address} accepts the recipe's longest sequence");
        let Some(context) = context else {
            return checks.skip(name, "the server does not report its context length (max_model_len)");
        };
        match &self.longest {
            Ok(Some(longest)) if *longest > context => {
                let detail = format!(
                    "its context is {context} tokens, and a prompt with its completion has up to {longest}: start it with \
                     --max-model-len {longest} or more, or reduce play.episodes and eval.episodes"
                );
                checks.record(name, Err(detail))?;
            }
            Ok(Some(longest)) => {
                checks.record(name, Ok(format!("context {context} tokens, {longest} needed")))?;
            }
            Ok(None) => {
                let local = self.model.config.max_position_embeddings;
                let why = "the environment's sequence length cannot be estimated";
                checks.skip(name, format!("context {context} tokens, {local} in the local config; {why}"))?;
            }
            Err(e) => checks.skip(name, format!("context {context} tokens; the required length is unknown: {e}"))?,
        }
        Ok(())
    }
}

/// Compares the server's tokens with the local tokenizer's on vocabulary words, `TEXTS` and all control tokens.
fn compare_tokenizers(
    renderer: &Renderer,
    remote: impl Fn(&str) -> Result<Vec<u32>, String>,
) -> Result<String, String> {
    let (words, control) = (some_words(renderer), control_words(renderer));
    // A text that the local vocabulary cannot encode (letters only, for example) is not compared.
    let plain = std::iter::once(words.as_str()).chain(TEXTS).filter_map(|t| Some((t, renderer.encode(t).ok()?)));
    let control = (control.as_str(), text(renderer.encode_trusted(&control))?);
    let mut compared = (0, 0);
    for (words, local) in plain.chain([control]).filter(|(_, local)| !local.is_empty()) {
        let remote = remote(words)?;
        if let Some(at) = (0..remote.len().max(local.len())).find(|at| remote.get(*at) != local.get(*at)) {
            let token = |all: &[u32]| {
                let id = all.get(at)?;
                Some(format!("{id} (`{}`)", renderer.token_text(*id).unwrap_or_default()))
            };
            let token = |all: &[u32]| token(all).unwrap_or_else(|| "none".to_owned());
            return Err(format!(
                "token {at} of {words:?} is {} on the server, {} locally",
                token(&remote),
                token(&local)
            ));
        }
        compared = (compared.0 + 1, compared.1 + local.len());
    }
    Ok(format!("{} identical tokens of {} texts", compared.1, compared.0))
}

/// Up to eight words of the vocabulary that are not control tokens.
fn some_words(renderer: &Renderer) -> String {
    let plain = |id: u32| {
        let word = renderer.token_text(id).filter(|t| t.chars().all(|c| c.is_ascii_alphanumeric()))?;
        renderer.encode(&word).is_ok_and(|tokens| tokens == [id]).then_some(word)
    };
    let words: Vec<String> = (0..renderer.vocab_size() as u32).filter_map(plain).take(8).collect();
    words.join(" ")
}

/// All control tokens, concatenated.
fn control_words(renderer: &Renderer) -> String {
    let all = (0..renderer.vocab_size() as u32).filter(|id| renderer.is_control(*id));
    all.filter_map(|id| renderer.token_text(id)).collect()
}
