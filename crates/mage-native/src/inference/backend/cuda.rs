//! How does a card execute a step?
//!
//! Sequences under the same weights go together. The point at which a token is drawn comes from the same stream of chance
//! as on the CPU, so the two differ only where rounding moves a boundary across it. Sets of possible answers lie on the card,
//! which is told where in them answers stand and says where the tokens that it draws lead.

use super::super::sequence::{LogitQuery, LogitResult, SequenceTable};
use super::cpu::put;
use super::{Backend, ModelBackend, StepInputs};
use crate::gpu::{GpuModel, failed};
use crate::weights::registry::DeviceWeights;
use mage_cuda::{Candidates, ModelRunner, TokenTrie};
use mage_engine::{ActionCursor, ActionSet, Result};
use mage_rng::Seed;
use rand::RngExt;
use std::sync::Arc;

/// A card, its pages, and the weights in use.
pub(crate) struct CudaBackend {
    stepper: ModelRunner,
    /// By the scheduler's number; there while requests use them.
    weights: Vec<Option<Arc<DeviceWeights>>>,
    /// Numbers of parts, those under the same weights together.
    order: Vec<u32>,
    tokens: Vec<u32>,
    parts: Vec<mage_cuda::SequenceSlice>,
    answers: Vec<mage_cuda::LogitResult>,
}

impl CudaBackend {
    pub(crate) fn new(card: &GpuModel, pages: u32, batch_invariant: bool) -> Result<Self> {
        Ok(CudaBackend {
            stepper: ModelRunner::new(&card.model, pages as usize, batch_invariant).map_err(failed)?,
            weights: Vec::new(),
            order: Vec::new(),
            tokens: Vec::new(),
            parts: Vec::new(),
            answers: Vec::new(),
        })
    }
}

/// A set of possible answers, as the card wants it.
fn trie(set: &ActionSet) -> TokenTrie<'_> {
    const { assert!(TokenTrie::ALL_TOKENS == ActionSet::EVERYTHING) };
    TokenTrie { id: set.id(), data: set.words() }
}

/// What is possible at a place.
fn node(cursor: &ActionCursor) -> Candidates<'_> {
    Candidates::TrieNode(trie(cursor.set()), cursor.place())
}

/// What a row is asked, as the card wants it.
fn ask(ask: LogitQuery<'_>) -> mage_cuda::LogitQuery<'_> {
    match ask {
        LogitQuery::Score { token, allowed } => mage_cuda::LogitQuery::score(token, allowed.map(|a| &a[..])),
        LogitQuery::Draw { params, cursor, index } => {
            let mut rng = Seed::new(params.seed).child("sample").at(index as u64).rng();
            // The largest number below 1: a point must lie on the line.
            let uniform = (rng.random::<f64>() as f32).min(1.0 - f32::EPSILON / 2.0);
            mage_cuda::LogitQuery {
                token: None,
                candidates: cursor.map_or(Candidates::All, node),
                top_k: params.top_k,
                temperature: params.temperature,
                top_p: params.top_p,
                min_p: params.min_p,
                uniform,
            }
        }
    }
}

impl Backend for CudaBackend {
    fn execute(&mut self, step: &StepInputs, requests: &SequenceTable, answers: &mut [LogitResult]) -> Result<()> {
        let CudaBackend { stepper, weights, order, tokens, parts, answers: said } = self;
        stepper.copy_blocks(&step.copies).map_err(failed)?;
        order.clear();
        order.extend(0..step.parts.len() as u32);
        order.sort_by_key(|i| step.parts[*i as usize].weights);
        for group in order.chunk_by(|a, b| step.parts[*a as usize].weights == step.parts[*b as usize].weights) {
            tokens.clear();
            parts.clear();
            let mut asks = Vec::with_capacity(group.len());
            let mut places = Vec::with_capacity(group.len());
            for part in group.iter().map(|i| &step.parts[*i as usize]) {
                let token_offset = tokens.len();
                tokens.extend_from_slice(&step.tokens[part.first..part.first + part.count]);
                parts.push(mage_cuda::SequenceSlice {
                    token_offset,
                    num_tokens: part.count,
                    start_position: part.position,
                    block_table_offset: part.table,
                    num_logits: part.asked,
                });
                let request = requests.at(part.request);
                let asked_from = part.position + part.count - part.asked;
                for i in 0..part.asked {
                    asks.push(ask(request.ask(asked_from + i)));
                    places.push(part.answer + i);
                }
            }
            let number = step.parts[group[0] as usize].weights as usize;
            let held = weights[number].as_ref().expect("weights stay while requests use them");
            said.clear();
            said.resize(asks.len(), mage_cuda::LogitResult::default());
            let now = mage_cuda::StepBatch { tokens, block_tables: &step.tables, sequences: parts, queries: &asks };
            stepper.step(held.cuda().held(), &now, said).map_err(failed)?;
            for (place, a) in places.into_iter().zip(said.iter()) {
                let (token, logprob, second) = (a.token, a.logprob, a.aux);
                answers[place] = LogitResult { token, logprob, second, place: a.next_node() };
            }
        }
        Ok(())
    }
}

impl ModelBackend for CudaBackend {
    fn hold(&mut self, number: u32, weights: Option<Arc<DeviceWeights>>) {
        put(&mut self.weights, number, weights);
    }

    fn hold_nothing(&mut self) {
        self.weights.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_read_sets_as_they_are_written() {
        let mut rng = Seed::new(8).rng();
        for i in 0..200 {
            let answer = |_| (0..rng.random_range(0..6)).map(|_| rng.random_range(0..9_u32)).collect::<Vec<_>>();
            let answers: Vec<Vec<u32>> = (0..1 + i % 20).map(answer).collect();
            // Whatever ends thinking is compared with, never looked up.
            let set = ActionSet::new(answers, Some(9), (i % 2 == 0).then_some(1000)).unwrap();
            trie(&set).check(10).unwrap();
            assert!(trie(&set).check(9).unwrap_err().to_string().contains("token 9 of 9"));
        }
    }
}
