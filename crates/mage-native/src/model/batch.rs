//! Packing of training batches into chunks.
//!
//! Each root-to-leaf path of the token forest becomes a sequence; every segment is trained on once. Sequences are packed without
//! padding into chunks of a token budget. The result depends only on the batch and the budget.

use mage_engine::TokenForest;
use mage_engine::model::{PackedChunk, Prediction};

/// Packs a checked batch into chunks of at most `budget` tokens; a longer sequence is a chunk of its own. Also returns the
/// number of predictions.
pub(crate) fn chunks(forest: &TokenForest, budget: usize) -> (Vec<PackedChunk>, usize) {
    let segments = &forest.segments;
    // Predictions are indexed in the order of the segments.
    let mut first_index = Vec::with_capacity(segments.len());
    let mut count = 0;
    for s in segments {
        first_index.push(count);
        count += s.train.as_ref().map_or(0, |t| t.weights.iter().filter(|w| **w != 0.0).count());
    }
    let mut has_child = vec![false; segments.len()];
    for s in segments {
        if let Some(p) = s.parent {
            has_child[p as usize] = true;
        }
    }
    let mut done = vec![false; segments.len()];
    let mut chunks: Vec<PackedChunk> = Vec::new();
    for leaf in (0..segments.len()).filter(|&s| !has_child[s]) {
        let path = forest.path(leaf);
        let trained =
            |s: &usize| !done[*s] && segments[*s].train.as_ref().is_some_and(|t| t.weights.iter().any(|w| *w != 0.0));
        // Tokens after the last trained segment do not affect the loss.
        let Some(last) = path.iter().rposition(trained) else { continue };
        let path = &path[..=last];
        let len: usize = path.iter().map(|&s| segments[s].tokens.len()).sum();
        let new = chunks.last().is_none_or(|c| c.tokens.len() + len > budget);
        if new {
            chunks.push(PackedChunk::default());
        }
        let end = chunks.len() - 1;
        let chunk = &mut chunks[end];
        let mut row = chunk.push(path.iter().flat_map(|&s| segments[s].tokens.iter().copied()));
        for &s in path {
            let segment = &segments[s];
            if let Some(train) = segment.train.as_ref().filter(|_| !done[s]) {
                let counting = (0..segment.tokens.len()).filter(|&i| train.weights[i] != 0.0);
                for (index, i) in (first_index[s]..).zip(counting) {
                    chunk.predictions.push(Prediction {
                        row: (row + i - 1) as u32,
                        token: segment.tokens[i],
                        allowed: train.allowed_at(i).cloned(),
                        inputs: train.at(i),
                        index,
                    });
                }
            }
            done[s] = true;
            row += segment.tokens.len();
        }
    }
    (chunks, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mage_engine::{PerToken, Segment};

    fn train(weights: &[f32]) -> Option<PerToken> {
        Some(PerToken { weights: weights.to_vec(), ..Default::default() })
    }

    #[test]
    fn shared_prefixes_are_trained_once() {
        let segment = |parent, tokens: &[u32], train| Segment { parent, tokens: tokens.to_vec(), train };
        let forest = TokenForest {
            segments: vec![
                segment(None, &[1, 2], train(&[0.0, 1.0])),
                segment(Some(0), &[3], train(&[1.0])),
                segment(Some(0), &[4, 5], train(&[1.0, 1.0])),
                segment(Some(0), &[6], None),
            ],
        };
        let (chunks, count) = chunks(&forest, 100);
        assert_eq!((chunks.len(), count), (1, 4));
        let c = &chunks[0];
        assert_eq!(c.tokens, [1, 2, 3, 1, 2, 4, 5]);
        assert_eq!(c.positions, [0, 1, 2, 0, 1, 2, 3]);
        let seen: Vec<(u32, u32, usize)> = c.predictions.iter().map(|p| (p.row, p.token, p.index)).collect();
        assert_eq!(seen, [(0, 2, 0), (1, 3, 1), (4, 4, 2), (5, 5, 3)]);
    }

    #[test]
    fn chunks_respect_the_token_budget() {
        let rows = (0..5).map(|i| {
            (
                vec![1; 3 + 4 * (i / 4)],
                PerToken {
                    weights: vec![0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0][..3 + 4 * (i / 4)].to_vec(),
                    ..Default::default()
                },
            )
        });
        let (chunks, _) = chunks(&TokenForest::from_sequences(rows), 6);
        assert_eq!(chunks.iter().map(|c| c.tokens.len()).collect::<Vec<_>>(), [6, 6, 7]);
    }
}
