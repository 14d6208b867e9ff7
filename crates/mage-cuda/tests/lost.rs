//! What is said when the card's state is lost?
//!
//! By itself in its process: after this nothing works on the card any more.

use mage_cuda::{Card, LayerPlaces, Model, Places, Prediction, Sequences, Shape, Trainer};

#[test]
fn a_lost_card_is_told_with_what_to_do() {
    if Card::count() == 0 {
        eprintln!("\n*** SKIPPED: no CUDA card here, so none could be lost ***\n");
        return;
    }
    let card = Card::open(0).unwrap();
    let shape =
        Shape { vocabulary: 40, hidden: 16, inner: 16, layers: 1, heads: 1, kv: 1, head_dim: 16, epsilon: 1e-6 };
    let mut len = 0;
    let mut put = |n: usize| {
        len += n;
        len - n..len
    };
    let embedding = put(40 * 16);
    let layer = LayerPlaces {
        norm1: put(16),
        qkv: put(3 * 256),
        head_norms: put(32),
        out: put(256),
        norm2: put(16),
        gate_up: put(512),
        down: put(256),
    };
    let norm = put(16);
    let places = Places { head: embedding.clone(), embedding, layers: vec![layer], norm, len };
    let model = Model::new(&card, shape, places, &[1.0; 64 * 16]).unwrap();
    let mut trainer = Trainer::new(&model, &vec![0.1; len]).unwrap();
    // A row far outside all memory: what a fault of the card would look like.
    let lost = Prediction { row: u32::MAX, token: 1, allowed: None };
    let batch = Sequences { tokens: &[1, 2, 3], spans: vec![(0, 3)], predictions: vec![lost] };
    let error = trainer.forward_backward(&batch, false, |_, _| (1.0, 0.0)).unwrap_err().to_string();
    assert!(error.contains("ILLEGAL_ADDRESS") && error.contains("goes on from its last checkpoint"), "{error}");
    // Everything after it says so too, and nothing hangs or panics.
    let again = trainer.snapshot().err().unwrap().to_string();
    assert!(again.contains("its last checkpoint"), "{again}");
}
