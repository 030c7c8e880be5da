//! A GPU: its context and its numbers.

use crate::driver::{name_of, probe, text_of};
use crate::error::Error;
use cudarc::driver::sys::{self, CUdevice_P2PAttribute, CUdevice_attribute, CUresult};
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Compute capability of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Capability {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What PTX is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Architecture {
    /// Ampere, and by the driver's compiler everything later.
    Sm80,
    /// Hopper with its architecture-specific instructions: nothing else will do.
    Sm90a,
}

impl Architecture {
    /// Does code for this architecture run on a device of `found`?
    pub fn runs_on(self, found: Capability) -> bool {
        match self {
            Architecture::Sm80 => found >= Capability { major: 8, minor: 0 },
            Architecture::Sm90a => found == Capability { major: 9, minor: 0 },
        }
    }

    /// The capability needed, in words.
    pub(crate) fn requirement(self) -> &'static str {
        match self {
            Architecture::Sm80 => "8.0 or later",
            Architecture::Sm90a => "9.0",
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Architecture::Sm80 => "sm_80",
            Architecture::Sm90a => "sm_90a",
        })
    }
}

/// What tells GPUs apart, in whatever process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    /// As `nvidia-smi -L` has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl Uuid {
    /// Reads what [`Uuid`] prints; `None` where it is something else.
    pub(crate) fn parse(text: &str) -> Option<Uuid> {
        let digits: String = text.strip_prefix("GPU-")?.split('-').collect();
        if digits.len() != 32 || !digits.is_ascii() {
            return None;
        }
        let mut bytes = [0; 16];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
        }
        Some(Uuid(bytes))
    }
}

/// Numbers of a device that never change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceProperties {
    /// Its name.
    pub name: String,
    /// Which one it is.
    pub uuid: Uuid,
    /// Its compute capability.
    pub capability: Capability,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// Bytes of the L2 cache.
    pub l2_bytes: u64,
    /// The most dynamic shared memory that a CTA may ask for, in bytes.
    pub shared_bytes: u32,
    /// Bytes of device memory.
    pub memory_bytes: u64,
}

impl DeviceProperties {
    /// The numbers of device `ordinal`, which is not opened for it.
    ///
    /// # Errors
    ///
    /// Those of [`probe`], [`Error::NoSuchDevice`], [`Error::Driver`].
    pub fn of(ordinal: u32) -> Result<DeviceProperties, Error> {
        let count = probe()?.devices;
        if ordinal >= count {
            return Err(Error::NoSuchDevice { ordinal, count });
        }
        properties(ordinal, handle(ordinal)?)
    }
}

/// A device with its primary context, the one that the CUDA runtime, cudarc and PyTorch use too.
pub struct Device {
    ordinal: u32,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    connections: u32,
    properties: DeviceProperties,
    /// The address of a word that streams write first; 0 where none has yet.
    first_word: Mutex<u64>,
}

// SAFETY: a context handle may be used by any thread, several at once (CUDA driver API,
// "Difference between the driver and runtime APIs"); the rest is plain data.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    ///
    /// Those of [`probe`], [`Error::NoSuchDevice`], [`Error::Driver`].
    pub fn open(ordinal: u32) -> Result<Arc<Device>, Error> {
        let info = probe()?;
        if ordinal >= info.devices {
            return Err(Error::NoSuchDevice { ordinal, count: info.devices });
        }
        let handle = handle(ordinal)?;
        let properties = properties(ordinal, handle)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle; `drop` releases what is retained here.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&mut context, handle) };
        check(ordinal, "cuDevicePrimaryCtxRetain", retained)?;
        let connections = info.connections;
        let first_word = Mutex::default();
        let device = Device { ordinal, handle, context, connections, properties, first_word };
        device.bind()?;
        Ok(Arc::new(device))
    }

    /// Position among the devices that the driver sees.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Its memory, as copies name it.
    pub(crate) fn location(&self) -> sys::CUmemLocation {
        let type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        sys::CUmemLocation { type_, id: self.ordinal as c_int }
    }

    /// Its numbers.
    pub fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    /// Checks that code for `need` runs here.
    ///
    /// # Errors
    ///
    /// [`Error::WrongArchitecture`].
    pub fn require_architecture(&self, need: Architecture) -> Result<(), Error> {
        let DeviceProperties { name, capability, .. } = &self.properties;
        if need.runs_on(*capability) {
            return Ok(());
        }
        Err(Error::WrongArchitecture { need, found: *capability, device: name.clone() })
    }

    /// Checks that `streams` streams can wait for each other without sharing a hardware queue.
    ///
    /// # Errors
    ///
    /// [`Error::TooFewConnections`], which says what to set.
    pub fn require_connections(&self, streams: u32) -> Result<(), Error> {
        require_connections(streams, self.connections)
    }

    /// Checks that this device can reach the memory of `peer`, atomic operations included.
    ///
    /// # Errors
    ///
    /// [`Error::NoPeerAccess`]; [`Error::NoPeerAtomics`]; [`Error::Driver`].
    pub fn require_peer(&self, peer: &Device) -> Result<(), Error> {
        self.require_reach_of(peer.ordinal, peer.handle)
    }

    /// As [`Device::require_peer`], for the GPU of another process. It is not opened here.
    ///
    /// # Errors
    ///
    /// Those of [`Device::require_peer`]; [`Error::HiddenDevice`].
    pub fn require_reach(&self, peer: Uuid) -> Result<(), Error> {
        if self.properties.uuid == peer {
            return Ok(());
        }
        for ordinal in 0..probe()?.devices {
            let handle = handle(ordinal)?;
            if uuid(ordinal, handle)? == peer {
                return self.require_reach_of(ordinal, handle);
            }
        }
        Err(Error::HiddenDevice { uuid: peer.to_string() })
    }

    fn require_reach_of(&self, other: u32, peer: sys::CUdevice) -> Result<(), Error> {
        let device = self.ordinal;
        if device == other {
            return Ok(());
        }
        let mut can: c_int = 0;
        // SAFETY: the pointer is to a live integer; both handles came from the driver.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.handle, peer) };
        self.check("cuDeviceCanAccessPeer", asked)?;
        if can == 0 {
            return Err(Error::NoPeerAccess { device, peer: other });
        }
        let native = CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let mut atomics: c_int = 0;
        // SAFETY: as above.
        let asked =
            unsafe { sys::cuDeviceGetP2PAttribute(&mut atomics, native, self.handle, peer) };
        self.check("cuDeviceGetP2PAttribute", asked)?;
        if atomics == 0 {
            return Err(Error::NoPeerAtomics { device, peer: other });
        }
        Ok(())
    }

    /// Lets kernels and copies of this device reach the memory of `peer`, by the addresses that it
    /// has there: what is allocated already and what comes later. Once is enough, and nothing where
    /// both are the same.
    ///
    /// # Errors
    ///
    /// Those of [`Device::require_peer`].
    pub fn enable_peer(&self, peer: &Device) -> Result<(), Error> {
        self.require_peer(peer)?;
        if self.ordinal == peer.ordinal {
            return Ok(());
        }
        self.bind()?;
        // SAFETY: this context is current, the peer's is retained as long as `peer` lives; no
        // other flags than zero exist.
        match unsafe { sys::cuCtxEnablePeerAccess(peer.context, 0) } {
            CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            enabled => self.check("cuCtxEnablePeerAccess", enabled),
        }
    }

    /// Bytes of device memory that are free now.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`].
    pub fn free_bytes(&self) -> Result<u64, Error> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both pointers are to live integers.
        self.check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok(free as u64)
    }

    /// Makes the context current on this thread, for the calls that follow.
    pub(crate) fn bind(&self) -> Result<(), Error> {
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a live handle.
        self.check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut current) })?;
        if current == self.context {
            return Ok(());
        }
        // SAFETY: the context is retained until `drop`.
        self.check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })
    }

    /// The address of a word of device memory whose value nobody reads. One holds it at a time.
    pub(crate) fn first_word(&self) -> Result<MutexGuard<'_, u64>, Error> {
        let mut word = self.first_word.lock().unwrap_or_else(PoisonError::into_inner);
        if *word == 0 {
            self.bind()?;
            let bytes = size_of::<u32>();
            // SAFETY: the pointer is to a live integer; `drop` frees the memory.
            let result = unsafe { sys::cuMemAlloc_v2(&mut *word, bytes) };
            self.check_allocation("cuMemAlloc", "device", bytes as u64, result)?;
        }
        Ok(word)
    }

    /// Waits for the work of the default stream, and of no stream made by [`crate::Stream::new`].
    pub(crate) fn synchronize_default_stream(&self) -> Result<(), Error> {
        // SAFETY: null names the default stream, which always exists.
        let result = unsafe { sys::cuStreamSynchronize(std::ptr::null_mut()) };
        self.check("cuStreamSynchronize", result)
    }

    /// Waits for all work of the context. Only for destructors of memory that work may still use.
    pub(crate) fn drain(&self) {
        // SAFETY: the call has no preconditions. A failure means that the context is lost, and
        // with it all the work.
        let _ = unsafe { sys::cuCtxSynchronize() };
    }

    /// Turns a driver's result into ours.
    pub(crate) fn check(&self, call: &'static str, result: CUresult) -> Result<(), Error> {
        check(self.ordinal, call, result)
    }

    /// As [`Device::check`], for a call that allocates.
    pub(crate) fn check_allocation(
        &self,
        call: &'static str,
        kind: &'static str,
        bytes: u64,
        result: CUresult,
    ) -> Result<(), Error> {
        if result != CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return self.check(call, result);
        }
        let free = self.free_bytes().unwrap_or(0);
        Err(Error::OutOfMemory { kind, device: self.ordinal, bytes, free })
    }

    /// Checks that something of `other` may be used with this device.
    pub(crate) fn require_same(&self, what: &'static str, other: &Device) -> Result<(), Error> {
        if self.ordinal == other.ordinal {
            return Ok(());
        }
        Err(Error::OtherDevice { what, need: self.ordinal, found: other.ordinal })
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let word = *self.first_word.get_mut().unwrap_or_else(PoisonError::into_inner);
        if word != 0 && self.bind().is_ok() {
            // SAFETY: the memory was allocated by `first_word` and is freed once.
            let _ = unsafe { sys::cuMemFree_v2(word) };
        }
        // SAFETY: this gives back what `open` retained, once.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.ordinal)
            .field("properties", &self.properties)
            .finish_non_exhaustive()
    }
}

fn check(device: u32, call: &'static str, result: CUresult) -> Result<(), Error> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        other => Err(Error::Driver { call, device, name: name_of(other), text: text_of(other) }),
    }
}

/// The driver's handle of a device that there is.
fn handle(ordinal: u32) -> Result<sys::CUdevice, Error> {
    let mut handle = 0;
    // SAFETY: the pointer is to a live integer; for an ordinal that is none there is an error.
    let found = unsafe { sys::cuDeviceGet(&mut handle, ordinal as c_int) };
    check(ordinal, "cuDeviceGet", found).map(|()| handle)
}

fn uuid(ordinal: u32, handle: sys::CUdevice) -> Result<Uuid, Error> {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is to a live value; the handle came from the driver.
    let found = unsafe { sys::cuDeviceGetUuid_v2(&mut uuid, handle) };
    check(ordinal, "cuDeviceGetUuid", found)?;
    Ok(Uuid(uuid.bytes.map(|byte| byte as u8)))
}

fn require_connections(wanted: u32, found: u32) -> Result<(), Error> {
    if wanted <= found {
        return Ok(());
    }
    Err(Error::TooFewConnections { wanted, found })
}

fn properties(ordinal: u32, handle: sys::CUdevice) -> Result<DeviceProperties, Error> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    };
    let attribute = |which: CUdevice_attribute| {
        let mut value: c_int = 0;
        // SAFETY: the pointer is to a live integer; the handle came from the driver.
        let result = unsafe { sys::cuDeviceGetAttribute(&mut value, which, handle) };
        check(ordinal, "cuDeviceGetAttribute", result).map(|()| value.unsigned_abs())
    };
    let mut name = [0 as c_char; 256];
    // SAFETY: the buffer has the length given, and the driver ends it with a zero.
    let named = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, handle) };
    check(ordinal, "cuDeviceGetName", named)?;
    let name = CStr::from_bytes_until_nul(bytemuck::cast_slice(&name))
        .map_or_else(|_| "unnamed".into(), |name| name.to_string_lossy().into_owned());
    let mut memory_bytes = 0usize;
    // SAFETY: the pointer is to a live integer; the handle came from the driver.
    let total = unsafe { sys::cuDeviceTotalMem_v2(&mut memory_bytes, handle) };
    check(ordinal, "cuDeviceTotalMem", total)?;
    Ok(DeviceProperties {
        name,
        uuid: uuid(ordinal, handle)?,
        capability: Capability {
            major: attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        sms: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2_bytes: u64::from(attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        shared_bytes: attribute(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        memory_bytes: memory_bytes as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::{Architecture, Capability, Uuid, require_connections};
    use crate::Error;

    #[test]
    fn hopper_code_runs_on_hopper_alone() {
        let at = |major, minor| Capability { major, minor };
        assert!(Architecture::Sm90a.runs_on(at(9, 0)));
        for other in [at(8, 0), at(8, 9), at(10, 0), at(12, 0)] {
            assert!(!Architecture::Sm90a.runs_on(other), "{other}");
            assert!(Architecture::Sm80.runs_on(other), "{other}");
        }
        assert!(!Architecture::Sm80.runs_on(at(7, 5)));
    }

    #[test]
    fn a_wrong_architecture_is_said_with_both_sides() {
        let error = Error::WrongArchitecture {
            need: Architecture::Sm90a,
            found: Capability { major: 8, minor: 0 },
            device: "NVIDIA A100".into(),
        };
        let said = "code for sm_90a needs compute capability 9.0, NVIDIA A100 has 8.0";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn devices_that_are_no_peers_say_what_shows_it_and_what_needs_none() {
        let access = Error::NoPeerAccess { device: 0, peer: 2 }.to_string();
        assert!(access.starts_with("device 0 cannot reach the memory of device 2"), "{access}");
        let atomics = Error::NoPeerAtomics { device: 2, peer: 0 }.to_string();
        for (said, shows) in
            [(access, "nvidia-smi topo -p2p r"), (atomics, "nvidia-smi topo -p2p a")]
        {
            assert!(said.contains(shows) && said.contains("Virtual ranks of one device"), "{said}");
        }
    }

    #[test]
    fn a_gpu_is_named_as_other_tools_name_it() {
        let uuid = Uuid(std::array::from_fn(|index| 0x10 + index as u8));
        assert_eq!(Uuid::parse(&uuid.to_string()), Some(uuid));
        for odd in ["GPU-1", "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f", ""] {
            assert_eq!(Uuid::parse(odd), None, "{odd}");
        }
        assert_eq!(uuid.to_string(), "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f");
    }

    #[test]
    fn too_few_queues_say_what_to_set() {
        assert_eq!(require_connections(8, 8), Ok(()));
        let error = require_connections(24, 8).unwrap_err();
        assert_eq!(error, Error::TooFewConnections { wanted: 24, found: 8 });
        assert!(error.to_string().contains("CUDA_DEVICE_MAX_CONNECTIONS to at least 24"));
    }
}
