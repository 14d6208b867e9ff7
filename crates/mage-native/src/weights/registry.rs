//! Which weights does a sampler see?
//!
//! Those that were published, whole or not at all: a request takes hold of one set at its start and keeps it to its end.

use crate::cpu::Cpu;
use crate::model::WeightSet;
use mage_engine::{AdapterName, Error, Result, WeightVersion, WeightsId};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Weights where they are used.
pub(crate) enum DeviceWeights {
    Cpu(WeightSet<Cpu>),
    Cuda(GpuWeights),
}

/// Weights on a card, with an adapter beside them or without.
pub(crate) struct GpuWeights {
    pub(crate) base: Arc<mage_cuda::CudaWeights>,
    pub(crate) adapter: Option<mage_cuda::CudaAdapter>,
}

impl GpuWeights {
    pub(crate) fn held(&self) -> mage_cuda::WeightsRef<'_> {
        mage_cuda::WeightsRef { base: &self.base, adapter: self.adapter.as_ref() }
    }
}

impl DeviceWeights {
    /// Weights in this machine's own memory: what is published for a card never reaches the CPU's kernels.
    pub(crate) fn cpu(&self) -> &WeightSet<Cpu> {
        match self {
            DeviceWeights::Cpu(set) => set,
            DeviceWeights::Cuda(_) => unreachable!("weights on a card were handed to the CPU"),
        }
    }

    /// The same the other way round.
    pub(crate) fn cuda(&self) -> &GpuWeights {
        match self {
            DeviceWeights::Cuda(set) => set,
            DeviceWeights::Cpu(_) => unreachable!("weights in memory were handed to a card"),
        }
    }
}

/// One published set of weights.
#[derive(Clone)]
pub(crate) struct PublishedWeights {
    pub(crate) version: WeightVersion,
    pub(crate) weights: Arc<DeviceWeights>,
}

/// Everything published, by name.
#[derive(Default)]
pub(crate) struct WeightRegistry(RwLock<BTreeMap<AdapterName, PublishedWeights>>);

impl WeightRegistry {
    pub(crate) fn publish(&self, name: &AdapterName, weights: Arc<DeviceWeights>) -> WeightVersion {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let version = WeightVersion(all.get(name).map_or(0, |r| r.version.0 + 1));
        all.insert(name.clone(), PublishedWeights { version, weights });
        version
    }

    pub(crate) fn get(&self, name: &AdapterName) -> Result<(WeightsId, Arc<DeviceWeights>)> {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match all.get(name) {
            Some(r) => Ok((WeightsId { name: name.clone(), version: r.version }, Arc::clone(&r.weights))),
            None => {
                let known: Vec<&str> = all.keys().map(AdapterName::as_str).collect();
                Err(Error::invalid(
                    format!("weights `{name}`"),
                    format!("nothing was published under that name; there is {}", known.join(", ")),
                ))
            }
        }
    }

    pub(crate) fn all(&self) -> BTreeMap<AdapterName, PublishedWeights> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace(&self, all: BTreeMap<AdapterName, PublishedWeights>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = all;
    }
}
