//! The registry of published weights.
//!
//! Weights are published atomically under a name with increasing versions. A request uses the version that is current when it
//! is submitted.

use crate::gpu::failed;
use crate::model::WeightSet;
use mage_engine::{Error, Result, WeightVersion, WeightsId, WeightsName};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Weights on a device.
pub(crate) enum DeviceWeights {
    Cpu(WeightSet),
    Cuda(GpuWeights),
}

/// Weights on a GPU, with or without an adapter.
pub(crate) struct GpuWeights {
    pub(crate) base: Arc<mage_cuda::CudaWeights>,
    pub(crate) adapter: Option<mage_cuda::CudaAdapter>,
}

impl GpuWeights {
    pub(crate) fn as_ref(&self) -> mage_cuda::WeightsRef<'_> {
        mage_cuda::WeightsRef { base: &self.base, adapter: self.adapter.as_ref() }
    }
}

impl DeviceWeights {
    /// The weights in CPU memory. Panics for weights on a GPU, which never reach the CPU backend.
    pub(crate) fn cpu(&self) -> &WeightSet {
        match self {
            DeviceWeights::Cpu(set) => set,
            DeviceWeights::Cuda(_) => unreachable!("GPU weights in the CPU backend"),
        }
    }

    /// The weights on the GPU. Panics for weights in CPU memory.
    pub(crate) fn cuda(&self) -> &GpuWeights {
        match self {
            DeviceWeights::Cuda(set) => set,
            DeviceWeights::Cpu(_) => unreachable!("CPU weights in the CUDA backend"),
        }
    }
}

impl DeviceWeights {
    /// The parameters of the base model, on the host.
    pub(crate) fn base_params(&self) -> Result<Cow<'_, [f32]>> {
        match self {
            DeviceWeights::Cpu(set) => Ok(Cow::Borrowed(&set.base.flat)),
            DeviceWeights::Cuda(set) => Ok(Cow::Owned(set.base.to_vec().map_err(failed)?)),
        }
    }

    /// The parameters of the adapter, on the host, if there is one.
    pub(crate) fn adapter_params(&self) -> Result<Option<Cow<'_, [f32]>>> {
        match self {
            DeviceWeights::Cpu(set) => Ok(set.adapter.as_ref().map(|a| Cow::Borrowed(&a.flat[..]))),
            DeviceWeights::Cuda(set) => {
                set.adapter.as_ref().map(|a| a.to_vec().map(Cow::Owned)).transpose().map_err(failed)
            }
        }
    }
}

/// A published version of weights.
#[derive(Clone)]
pub(crate) struct PublishedWeights {
    pub(crate) version: WeightVersion,
    pub(crate) weights: Arc<DeviceWeights>,
}

/// Published weights by name.
#[derive(Default)]
pub(crate) struct WeightRegistry(RwLock<BTreeMap<WeightsName, PublishedWeights>>);

impl WeightRegistry {
    pub(crate) fn publish(&self, name: &WeightsName, weights: Arc<DeviceWeights>) -> WeightVersion {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let version = WeightVersion(all.get(name).map_or(0, |r| r.version.0 + 1));
        all.insert(name.clone(), PublishedWeights { version, weights });
        version
    }

    pub(crate) fn get(&self, name: &WeightsName) -> Result<(WeightsId, Arc<DeviceWeights>)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match all.get(name) {
            Some(r) => Ok((WeightsId { name: name.clone(), version: r.version }, Arc::clone(&r.weights))),
            None => {
                let known: Vec<&str> = all.keys().map(WeightsName::as_str).collect();
                Err(Error::invalid(
                    format!("weights `{name}`"),
                    format!("nothing is published under that name; published: {}", known.join(", ")),
                ))
            }
        }
    }

    pub(crate) fn all(&self) -> BTreeMap<WeightsName, PublishedWeights> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace(&self, all: BTreeMap<WeightsName, PublishedWeights>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all;
    }
}
