//! Protobuf messages of the Tinker protocol (package `tinker_public`), with field numbers from the SDK's descriptor of
//! the supported version. All arrays are raw little-endian bytes.

use prost::Message;
use std::collections::HashMap;

/// Media type of these messages.
pub(super) const PROTOBUF: &str = "application/x-protobuf";

/// Request for a gradient, or for log-probs only.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ForwardBackwardRequest {
    #[prost(string, tag = "1")]
    pub(super) model_id: String,
    #[prost(int32, tag = "2")]
    pub(super) seq_id: i32,
    #[prost(message, repeated, tag = "3")]
    pub(super) data: Vec<Datum>,
    #[prost(string, tag = "4")]
    pub(super) loss_fn: String,
    // A sorted map: equal requests must be equal bytes, since the server compares repeated sequence numbers.
    #[prost(btree_map = "string, double", tag = "5")]
    pub(super) loss_fn_config: std::collections::BTreeMap<String, f64>,
    #[prost(bool, tag = "6")]
    pub(super) forward_only: bool,
}

/// One sequence.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Datum {
    #[prost(message, repeated, tag = "1")]
    pub(super) model_input: Vec<ModelInputChunk>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(super) loss_fn_inputs: std::collections::BTreeMap<String, TensorData>,
}

/// A chunk of the model input; only text is used.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelInputChunk {
    #[prost(message, optional, tag = "1")]
    pub(super) encoded_text: Option<EncodedText>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EncodedText {
    /// 32-bit integers.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) tokens: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorData {
    #[prost(bytes = "vec", optional, tag = "1")]
    pub(super) dense: Option<Vec<u8>>,
    #[prost(enumeration = "TensorDType", tag = "3")]
    pub(super) dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(super) shape: Vec<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum TensorDType {
    Unspecified = 0,
    Float32 = 1,
    Int64 = 2,
    Int32 = 3,
    Bfloat16 = 4,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ForwardBackwardOutput {
    #[prost(string, tag = "1")]
    pub(super) loss_fn_output_type: String,
    #[prost(message, repeated, tag = "2")]
    pub(super) loss_fn_outputs: Vec<ArrayRecord>,
    #[prost(map = "string, double", tag = "3")]
    pub(super) metrics: HashMap<String, f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ArrayRecord {
    #[prost(map = "string, message", tag = "2")]
    pub(super) fields: HashMap<String, BatchedTensor>,
    #[prost(int64, tag = "3")]
    pub(super) num_datums: i64,
}

/// Arrays of several sequences, concatenated.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BatchedTensor {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) data: Vec<u8>,
    /// Byte offsets of the sequences and of the end, as 64-bit integers.
    #[prost(bytes = "vec", tag = "2")]
    pub(super) offsets: Vec<u8>,
    #[prost(enumeration = "TensorDType", tag = "3")]
    pub(super) dtype: i32,
    #[prost(int64, repeated, tag = "4")]
    pub(super) trailing_shape: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SampleResponse {
    #[prost(message, repeated, tag = "1")]
    pub(super) sequences: Vec<SampledSequence>,
    /// 32-bit floats; NaN for tokens without context.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) prompt_logprobs: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SampledSequence {
    /// 0: stop token; 1: truncated.
    #[prost(int32, tag = "1")]
    pub(super) stop_reason: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) tokens: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) logprobs: Vec<u8>,
}

impl ModelInputChunk {
    /// Creates a chunk of tokens.
    pub(super) fn text(tokens: &[u32]) -> Self {
        let tokens = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        ModelInputChunk { encoded_text: Some(EncodedText { tokens }) }
    }
}

impl TensorData {
    pub(super) fn floats(values: &[f32]) -> Self {
        let dense = Some(values.iter().flat_map(|x| x.to_le_bytes()).collect());
        TensorData { dense, dtype: TensorDType::Float32.into(), shape: vec![values.len() as i64] }
    }

    pub(super) fn tokens(values: &[u32]) -> Self {
        let dense = Some(values.iter().flat_map(|t| i64::from(*t).to_le_bytes()).collect());
        TensorData { dense, dtype: TensorDType::Int64.into(), shape: vec![values.len() as i64] }
    }
}

impl ForwardBackwardOutput {
    /// Values of a field by sequence. Inconsistent data is an error.
    pub(super) fn field(&self, field: &str) -> Result<Vec<Vec<f32>>, String> {
        let mut values = Vec::new();
        for record in &self.loss_fn_outputs {
            let Some(tensor) = record.fields.get(field) else {
                let mut present: Vec<&str> = record.fields.keys().map(String::as_str).collect();
                present.sort_unstable();
                return Err(format!("no field `{field}`, only {}", present.join(", ")));
            };
            if tensor.dtype() != TensorDType::Float32 {
                return Err(format!("`{field}` has type {:?}, not 32-bit float", tensor.dtype()));
            }
            let mut offsets = Vec::new();
            for bytes in tensor.offsets.as_chunks::<8>().0 {
                let at = i64::from_le_bytes(*bytes);
                offsets.push(usize::try_from(at).map_err(|_| format!("`{field}` has the offset {at}"))?);
            }
            if offsets.len() != record.num_datums as usize + 1 {
                return Err(format!("`{field}` has {} offsets for {} sequences", offsets.len(), record.num_datums));
            }
            for pair in offsets.windows(2) {
                let bytes = tensor.data.get(pair[0]..pair[1]);
                values.push(floats(bytes.ok_or_else(|| format!("`{field}` is too short"))?)?);
            }
        }
        Ok(values)
    }
}

/// Parses 32-bit floats.
pub(super) fn floats(bytes: &[u8]) -> Result<Vec<f32>, String> {
    let (whole, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are not 32-bit floats", bytes.len()));
    }
    Ok(whole.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Parses tokens.
pub(super) fn tokens(bytes: &[u8]) -> Result<Vec<u32>, String> {
    let (whole, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(format!("{} bytes are not 32-bit integers", bytes.len()));
    }
    let token = |b: &[u8; 4]| {
        let t = i32::from_le_bytes(*b);
        u32::try_from(t).map_err(|_| format!("{t} is not a token"))
    };
    whole.iter().map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request with one sequence, as the SDK encodes it.
    #[test]
    fn request_bytes_equal_those_of_the_sdk() {
        let request = ForwardBackwardRequest {
            model_id: "m".to_owned(),
            seq_id: 3,
            data: vec![Datum {
                model_input: vec![ModelInputChunk::text(&[5, 6])],
                loss_fn_inputs: [
                    ("target_tokens".to_owned(), TensorData::tokens(&[6, 7])),
                    ("weights".to_owned(), TensorData::floats(&[0.0, 1.0])),
                ]
                .into(),
            }],
            loss_fn: "ppo".to_owned(),
            loss_fn_config: [("clip_low_threshold".to_owned(), 0.8)].into(),
            forward_only: true,
        };
        let bytes = request.encode_to_vec();
        let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, include_str!("../../tests/recorded/forward_backward.hex").trim());
        assert_eq!(ForwardBackwardRequest::decode(&bytes[..]).unwrap(), request);
    }

    #[test]
    fn values_are_split_at_the_offsets() {
        let batched = |data: &[f32], offsets: &[i64]| ForwardBackwardOutput {
            loss_fn_outputs: vec![ArrayRecord {
                fields: [(
                    "logprobs".to_owned(),
                    BatchedTensor {
                        data: data.iter().flat_map(|x| x.to_le_bytes()).collect(),
                        offsets: offsets.iter().flat_map(|x| x.to_le_bytes()).collect(),
                        dtype: TensorDType::Float32.into(),
                        trailing_shape: Vec::new(),
                    },
                )]
                .into(),
                num_datums: 2,
            }],
            ..Default::default()
        };
        let good = batched(&[1.0, 2.0, 3.0], &[0, 4, 12]);
        assert_eq!(good.field("logprobs").unwrap(), [vec![1.0], vec![2.0, 3.0]]);
        assert!(good.field("losses").unwrap_err().contains("only logprobs"));
        assert!(batched(&[1.0], &[0, 4]).field("logprobs").unwrap_err().contains("2 offsets for 2 sequences"));
        assert!(batched(&[1.0], &[0, 4, 12]).field("logprobs").unwrap_err().contains("too short"));
        assert!(batched(&[1.0], &[0, -4, 4]).field("logprobs").unwrap_err().contains("offset -4"));
        assert!(batched(&[1.0, 2.0], &[0, 3, 8]).field("logprobs").unwrap_err().contains("not 32-bit floats"));
    }

    #[test]
    fn negative_tokens_are_rejected() {
        assert_eq!(tokens(&7_i32.to_le_bytes()).unwrap(), [7]);
        assert!(tokens(&(-1_i32).to_le_bytes()).is_err() && tokens(&[1, 2]).is_err());
    }
}
