//! What rows of logits say, and how each logit bears on it.

use super::{Bench, near, numbers, slopes};
use crate::card::args;
use crate::packet::{ASK, Answer, Ask, Packet, READERS};

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
    s.launch(f.distribution, (rows, 1, 1), READERS, 0, args![l, st, vo, w, scores, choices.at(0)]).unwrap();
    s.launch(
        f.distribution_grad,
        (rows, 1, 1),
        1024,
        0,
        args![l, st, vo, w, scores, choices.at(0), slopes_on.at(0), gradient.at(0)],
    )
    .unwrap();
    s.launch(f.answer, (rows, 1, 1), READERS, 0, args![l, st, vo, w, draws, answers.at(0)]).unwrap();
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

/// Weights of candidates at a temperature, after the filters: a beginning of them by falling weight and rising number.
fn kept(row: &[f64], candidates: &[u32], ask: &Ask<'_>) -> Vec<(u32, f64)> {
    let most = candidates.iter().map(|c| row[*c as usize]).fold(f64::NEG_INFINITY, f64::max);
    let weight = |c: u32| ((row[c as usize] - most) / f64::from(ask.temperature)).exp();
    let mut order: Vec<(u32, f64)> = candidates.iter().map(|c| (*c, weight(*c))).collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    if ask.top_k > 0 {
        order.truncate(ask.top_k as usize);
    }
    let enough = f64::from(ask.top_p) * order.iter().map(|(_, w)| w).sum::<f64>();
    let mut sum = 0.0;
    order.retain(|(_, w)| {
        let stays = ask.top_p >= 1.0 || sum < enough;
        sum += w;
        stays && *w >= f64::from(ask.min_p)
    });
    order.sort_by_key(|(c, _)| *c);
    order
}

#[test]
fn draws_from_many_candidates_lie_where_the_point_says() {
    let Some(b) = Bench::new(16, 2, 1) else { return };
    let (v, stride) = (20_011, 20_016);
    let odd: Vec<u32> = (0..v as u32).filter(|t| t % 2 == 1).collect();
    let plain = Ask { token: None, ..Ask::score(0, None) };
    let mut asks = Vec::new();
    for allowed in [None, Some(&odd[..])] {
        for point in [0.0, 0.01, 0.3, 0.5, 0.77, 0.999_9] {
            asks.push(Ask { point, allowed, ..plain });
            asks.push(Ask { point, allowed, temperature: 0.3, ..plain });
            asks.push(Ask { point, allowed, top_k: 300, ..plain });
            asks.push(Ask { point, allowed, top_p: 0.7, temperature: 2.0, ..plain });
            asks.push(Ask { point, allowed, min_p: 0.2, ..plain });
            asks.push(Ask { point, allowed, top_k: 9000, top_p: 0.5, min_p: 0.1, temperature: 0.8, ..plain });
        }
    }
    let rows = asks.len();
    // Far from even: most of the mass is with few.
    let logits: Vec<f64> = numbers(rows * stride, 9).iter().map(|x| f64::from((8.0 * x * x * x) as f32)).collect();
    let (mut packet, f, s) = (Packet::default(), &b.model.program.functions, &b.stream);
    let at = packet.leave(rows * ASK);
    asks.iter().enumerate().for_each(|(i, ask)| packet.ask(at, i, ask));
    let (words, bl) = (b.put(&packet.words), b.put(&logits.iter().map(|x| *x as f32).collect::<Vec<_>>()));
    let answers = b.put(&vec![Answer::default(); rows]);
    let given = args![bl.at(0), stride as u64, v, words.at(0), at, answers.at(0)];
    s.launch(f.answer, (rows, 1, 1), READERS, 0, given).unwrap();
    s.wait().unwrap();
    let all: Vec<u32> = (0..v as u32).collect();
    for (i, (answer, ask)) in answers.to_vec().unwrap().iter().zip(&asks).enumerate() {
        let row = &logits[i * stride..][..v];
        let candidates = ask.allowed.unwrap_or(&all);
        let order = kept(row, candidates, ask);
        let total: f64 = order.iter().map(|(_, w)| w).sum();
        let place = order.iter().position(|(c, _)| *c == answer.token);
        let place = place.unwrap_or_else(|| panic!("{ask:?} drew {}, which was cut", answer.token));
        let before: f64 = order[..place].iter().map(|(_, w)| w).sum();
        let (goal, near_enough) = (f64::from(ask.point) * total, 1e-4 * total);
        let its = before - near_enough..=before + order[place].1 + near_enough;
        assert!(its.contains(&goal), "row {i}, {ask:?}: {goal} is not in {its:?} of {}", answer.token);
        let (logprob, _) = said(row, candidates, answer.token);
        let second = (order[place].1 / total).ln();
        near("drawn", &[f64::from(answer.logprob), f64::from(answer.second)], &[logprob, second], 1e-3);
    }
}
