//! Do steps answer the same however their rows are brought together?

use super::{Answer, Ask, Held, Part, Step, Stepper};
use crate::card::tests::card_or_skip;
use crate::model::Model;
use crate::shape::{LayerPlaces, Places, Shape};
use std::ops::Range;

fn places(c: &Shape) -> Places {
    let mut len = 0;
    let mut put = |n: usize| -> Range<usize> {
        len += n;
        len - n..len
    };
    let d = c.hidden;
    let embedding = put(c.vocabulary * d);
    let layer = LayerPlaces {
        norm1: put(d),
        qkv: put(c.qkv() * d),
        head_norms: put(2 * c.head_dim),
        out: put(d * c.out()),
        norm2: put(d),
        gate_up: put(2 * c.inner * d),
        down: put(d * c.inner),
    };
    let norm = put(d);
    Places { head: embedding.clone(), embedding, layers: vec![layer], norm, len }
}

#[test]
fn more_rows_than_logits_fit_at_once_answer_as_in_small_steps() {
    let Some(card) = card_or_skip("no step was taken") else { return };
    let shape =
        Shape { vocabulary: 151_936, hidden: 64, inner: 64, layers: 1, heads: 4, kv: 2, head_dim: 16, epsilon: 1e-6 };
    let rows = 1000;
    assert!(super::logit_rows(&shape) < rows, "all of them fit at once");
    let (places, turns) = (places(&shape), vec![0.5_f32; 64 * shape.head_dim]);
    let flat: Vec<f32> =
        (0..places.len as u32).map(|i| i.wrapping_mul(2_654_435_761) as f32 / u32::MAX as f32 - 0.5).collect();
    let model = Model::new(&card, shape, places, &turns).unwrap();
    let weights = model.weights(&flat).unwrap();
    let held = Held { base: &weights, adapter: None };
    let tokens: Vec<u32> = (0..rows as u32).map(|i| i * 151).collect();
    let tables: Vec<u32> = (0..rows as u32).collect();
    let asks: Vec<Ask<'_>> = tokens.iter().map(|t| Ask::score(151_935 - t, None)).collect();
    let parts: Vec<Part> = (0..rows).map(|i| Part { first: i, count: 1, position: 0, table: i, asked: 1 }).collect();
    let answers = |at_once: usize| {
        let mut stepper = Stepper::new(&model, rows, false).unwrap();
        let mut answers = vec![Answer::default(); rows];
        for (parts, (asks, answers)) in parts.chunks(at_once).zip(asks.chunks(at_once).zip(answers.chunks_mut(at_once)))
        {
            stepper.step(held, &Step { tokens: &tokens, tables: &tables, parts, asks }, answers).unwrap();
        }
        answers
    };
    let (few, many) = (answers(250), answers(rows));
    for (i, (a, b)) in few.iter().zip(&many).enumerate() {
        assert_eq!(a.token, b.token);
        let apart = (a.logprob - b.logprob).abs().max((a.second - b.second).abs());
        assert!(apart < 0.03, "row {i}: {a:?} in a small step, {b:?} in a large one");
    }
    // The rows are told apart by more than that.
    let spread = few.iter().map(|a| a.logprob).fold(f32::NEG_INFINITY, f32::max)
        - few.iter().map(|a| a.logprob).fold(f32::INFINITY, f32::min);
    assert!(spread > 1.0, "all answers lie within {spread}");
}
