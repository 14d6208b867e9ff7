//! What rows of logits say, and how each logit bears on it.

use super::{Bench, near, numbers, slopes};
use crate::card::args;
use crate::packet::{ASK, Answer, Ask, Packet};

/// Log-probability and entropy of a token among candidates.
fn said(logits: &[f64], candidates: &[u32], token: u32) -> (f64, f64) {
    let most = candidates.iter().map(|c| logits[*c as usize]).fold(f64::NEG_INFINITY, f64::max);
    let sum = candidates.iter().map(|c| (logits[*c as usize] - most).exp()).sum::<f64>().ln() + most;
    let entropy = candidates.iter().map(|c| logits[*c as usize] - sum).map(|l| -l * l.exp()).sum();
    (logits[token as usize] - sum, entropy)
}

#[test]
fn scores_draws_and_gradients_of_logits() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (v, stride) = (b.shape.vocabulary, b.shape.logits());
    let rows = 4;
    let logits: Vec<f64> = numbers(rows * stride, 5).iter().map(|x| 3.0 * x).collect();
    let all: Vec<u32> = (0..v as u32).collect();
    let some: Vec<u32> = vec![3, 17, 40, 41, 200, 300];
    let candidates = [&all, &some, &all, &some];
    let tokens = [7, 41, 300, 3];
    let (mut packet, f, s) = (Packet::default(), &b.model.program.functions, &b.stream);
    let scores = packet.leave(rows * ASK);
    let draws = packet.leave(rows * ASK);
    for (i, token) in tokens.into_iter().enumerate() {
        let allowed = (i % 2 == 1).then_some(&some[..]);
        packet.ask(scores, i, &Ask::score(token, allowed));
        // The likeliest, then draws under every filter at once.
        let greedy = Ask { token: None, temperature: 0.0, ..Ask::score(0, allowed) };
        let drawn = Ask { token: None, top_k: 5, temperature: 1.5, top_p: 0.9, min_p: 0.01, point: 0.4, allowed };
        packet.ask(draws, i, if i < 2 { &greedy } else { &drawn });
    }
    let words = b.put(&packet.words);
    let bl = b.put(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>());
    let (choices, slopes_on) = (b.put(&vec![[0_f32; 4]; rows]), b.put(&[[0.7_f32, -0.3]; 4]));
    let (answers, gradient) = (b.put(&vec![Answer::default(); rows]), b.room(rows * stride));
    let common = (bl.at(0), stride as u64, v, words.at(0));
    let (l, st, vo, w) = common;
    s.launch(f.distribution, (rows, 1, 1), 1024, 0, args![l, st, vo, w, scores, choices.at(0)]).unwrap();
    s.launch(
        f.distribution_grad,
        (rows, 1, 1),
        1024,
        0,
        args![l, st, vo, w, scores, choices.at(0), slopes_on.at(0), gradient.at(0)],
    )
    .unwrap();
    s.launch(f.answer, (rows, 1, 1), 1024, 0, args![l, st, vo, w, draws, answers.at(0)]).unwrap();
    s.wait().unwrap();
    let (got, gradient, answers) = (choices.to_vec().unwrap(), b.read(&gradient), answers.to_vec().unwrap());
    for i in 0..rows {
        let row = &logits[i * stride..][..v];
        let (logprob, entropy) = said(row, candidates[i], tokens[i]);
        near("said", &[f64::from(got[i][0]), f64::from(got[i][1])], &[logprob, entropy], 1e-5);
        let want = slopes(row, |row| {
            let (logprob, entropy) = said(row, candidates[i], tokens[i]);
            0.7 * logprob - 0.3 * entropy
        });
        near("gradient", &gradient[i * stride..][..v], &want, 0.005);
        let mut order = candidates[i].clone();
        order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
        let likeliest = order[0];
        if i < 2 {
            assert_eq!(answers[i].token, likeliest);
        } else {
            assert!(order[..5].contains(&answers[i].token), "{} was cut", answers[i].token);
        }
        near("drawn", &[f64::from(answers[i].logprob)], &[said(row, candidates[i], answers[i].token).0], 1e-5);
    }
}
