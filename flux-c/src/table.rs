//! What is open, by number.

use crate::bundle::OpenBundle;
use crate::kernel::OpenKernel;
use crate::status::{Failure, guarded};
use crate::symmetric::OpenSymmetric;
use crate::world::OpenWorld;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Something that was opened. Numbers are never given twice; 0 is none.
pub type flux_handle = u64;

/// What handles name.
#[derive(Debug, Clone)]
pub(crate) enum Object {
    World(Arc<OpenWorld>),
    Bundle(Arc<OpenBundle>),
    Kernel(Arc<OpenKernel>),
    Symmetric(Arc<OpenSymmetric>),
}

impl Object {
    fn kind(&self) -> &'static str {
        match self {
            Object::World(_) => "a world",
            Object::Bundle(_) => "a bundle",
            Object::Kernel(_) => "a kernel",
            Object::Symmetric(_) => "a symmetric tensor",
        }
    }
}

#[derive(Debug)]
struct Table {
    opened: u64,
    objects: BTreeMap<u64, Object>,
}

static TABLE: Mutex<Table> = Mutex::new(Table { opened: 0, objects: BTreeMap::new() });

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives something a number.
pub(crate) fn open(object: Object) -> flux_handle {
    let mut table = table();
    table.opened += 1;
    let handle = table.opened;
    table.objects.insert(handle, object);
    handle
}

fn find(handle: flux_handle, expected: &str) -> Result<Object, Failure> {
    let table = table();
    let found = table.objects.get(&handle).cloned();
    found.ok_or_else(|| {
        let state = match handle {
            0 => "it is 0, which names nothing",
            closed if closed <= table.opened => "it has been closed",
            _ => "it was never opened",
        };
        Failure::invalid(format!("handle {handle} is not {expected}: {state}"))
    })
}

macro_rules! finders {
    ($($name:ident: $variant:ident($open:ty), $words:literal;)*) => {$(
        pub(crate) fn $name(handle: flux_handle) -> Result<Arc<$open>, Failure> {
            match find(handle, $words)? {
                Object::$variant(found) => Ok(found),
                other => Err(Failure::invalid(format!(
                    "handle {handle} is {}, expected {}", other.kind(), $words
                ))),
            }
        }
    )*};
}

finders! {
    world: World(OpenWorld), "a world";
    bundle: Bundle(OpenBundle), "a bundle";
    kernel: Kernel(OpenKernel), "a kernel";
    symmetric: Symmetric(OpenSymmetric), "a symmetric tensor";
}

/// Closes a world, a bundle, a kernel or a symmetric tensor. A world ends with the last kernel and
/// symmetric tensor of it; where ranks are processes, rank 0's then waits for the others to end, for as
/// long as a wait may take.
#[unsafe(no_mangle)]
pub extern "C" fn flux_close(handle: flux_handle) -> i32 {
    guarded(|| {
        find(handle, "open")?;
        let closed = table().objects.remove(&handle);
        // Outside of the lock: a world may wait.
        drop(closed);
        Ok(())
    })
}
