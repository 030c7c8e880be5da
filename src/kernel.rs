//! A loaded kernel: checks a launch, prepares what a new shape needs, and hands it to the host
//! executor or to the GPU.

use crate::definition::{Definition, Image};
use crate::error::Error;
use crate::gpu::GpuInstance;
use crate::meeting::Meeting;
use crate::problem;
use crate::tensor::{Arg, Data, reborrow};
use crate::world::{Backend, Rank, Shared};
use flux_ir::arena::Handle;
use flux_ir::check::{Verified, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::{ParamId, ParamType};
use flux_ir::lower::{lower, usage};
use flux_ir::order::OrderError;
use flux_ir::program::BufferId;
use flux_ir::{Diagnostic, Kernel, Rule, Schedule, Shape, Span, Target, fingerprint};
use flux_sim::{RankArgs, Workspace};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A kernel loaded on one rank.
#[derive(Debug)]
#[doc(hidden)]
pub struct Loaded {
    shared: Arc<Shared>,
    meeting: Meeting,
    source: Arc<Source>,
    /// What was prepared, by the extents of this rank's tensors.
    instances: Mutex<HashMap<problem::Extents, Arc<Instance>>>,
}

/// A kernel lowered and checked: made once for all ranks.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) definition: &'static Definition,
    pub(crate) kernel: Kernel,
    usage: usage::Usage,
    pub(crate) family: Vec<Member>,
}

/// One way to run a kernel.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) schedule: Schedule,
    pub(crate) verified: Verified,
    pub(crate) image: Option<&'static Image>,
}

/// What one shape needs on one rank.
#[derive(Debug)]
struct Instance {
    launch: Launch,
    member: usize,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// Nothing to do: the output has no element.
    Empty,
    Host(Arc<Workspace>),
    Gpu(Arc<GpuInstance>),
}

impl Loaded {
    /// Loads `definition` on `rank`, with its own schedules or with the one given. Every rank of
    /// the world has to load the same kernels in the same order.
    ///
    /// # Errors
    /// A schedule that breaks a rule or was not compiled in.
    pub fn new(
        definition: &'static Definition,
        rank: &Rank,
        schedule: Option<&Schedule>,
    ) -> Result<Loaded, Error> {
        let meeting = rank.meeting(rank.next_load());
        meeting.agree("load", describe(definition, schedule))?;
        let host = matches!(rank.shared.backend, Backend::Host { .. });
        let source = meeting.share("source", || Source::new(definition, schedule, host))?;
        let shared = Arc::clone(&rank.shared);
        Ok(Loaded { shared, meeting, source, instances: Mutex::default() })
    }

    /// Launches the kernel with arguments in the order of its parameters.
    ///
    /// # Errors
    /// Arguments that do not fit together, ranks that disagree, a stalled peer.
    pub fn launch(&self, args: &mut [Arg<'_>]) -> Result<(), Error> {
        let extents = self.extents(args)?;
        let instance = match self.known(&extents) {
            Some(instance) => instance,
            None => self.prepare(extents)?,
        };
        let member = &self.source.family[instance.member];
        match &instance.place {
            Place::Empty => Ok(()),
            Place::Host(workspace) => {
                let args = self.host_args(args)?;
                let (verified, limit) = (&member.verified, self.shared.limit);
                let (launch, rank) = (instance.launch, self.meeting.rank());
                // A launch whose arguments are refused does not count.
                let epoch = workspace.completed(rank)?.wrapping_add(1);
                flux_sim::launch_rank(verified, launch, rank, epoch, workspace, args, limit)?;
                Ok(())
            }
            Place::Gpu(instance) => match &self.shared.backend {
                Backend::Gpu(gpu) => instance.launch(gpu, &self.source, member, args),
                Backend::Host { .. } => Ok(()),
            },
        }
    }

    fn known(&self, extents: &problem::Extents) -> Option<Arc<Instance>> {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.get(extents).cloned()
    }

    /// Rows and columns of every argument, each checked to lie where this rank computes.
    fn extents(&self, args: &[Arg<'_>]) -> Result<problem::Extents, Error> {
        let on_host = matches!(self.shared.backend, Backend::Host { .. });
        let mut extents = Vec::with_capacity(args.len());
        for (index, arg) in args.iter().enumerate() {
            extents.push(match arg {
                Arg::Scalar(_) => [0, 0],
                Arg::Tensor(tensor) => {
                    let is_host = !matches!(tensor.data, Data::Device(_));
                    if is_host != on_host {
                        let name = |host| if host { "the host" } else { "the GPU" }.to_owned();
                        let param = self.source.kernel.params[ParamId::new(index)].name.clone();
                        let (expected, found) = (name(on_host), name(is_host));
                        return Err(Error::WrongPlace { param, expected, found });
                    }
                    [limit("rows", tensor.rows)?, limit("columns", tensor.cols)?]
                }
            });
        }
        Ok(extents)
    }

    /// Agrees with the other ranks on what is launched, and makes what a new shape needs.
    fn prepare(&self, extents: problem::Extents) -> Result<Arc<Instance>, Error> {
        let source = &self.source;
        let all = self.meeting.gather_extents(&extents)?;
        let shape = problem::shape(&source.kernel, &source.usage, &all)?;
        let instance = if shape.m == 0 || shape.n == 0 {
            let launch = Launch { shape, world: self.shared.size, ctas: 1 };
            Instance { launch, member: 0, place: Place::Empty }
        } else if shape.k == 0 {
            return Err(Error::EmptyReduction);
        } else {
            self.instance(shape)?
        };
        let instance = Arc::new(instance);
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.insert(extents, Arc::clone(&instance));
        Ok(instance)
    }

    fn instance(&self, shape: Shape) -> Result<Instance, Error> {
        match &self.shared.backend {
            Backend::Host { ctas } => {
                let member = &self.source.family[0];
                let ctas = member.schedule.ctas.unwrap_or(*ctas);
                let launch = Launch { shape, world: self.shared.size, ctas };
                let workspace = self.meeting.share("workspace", || {
                    member.verified.check_launch(launch)?;
                    Ok(Workspace::new(&member.verified, launch)?)
                })?;
                Ok(Instance { launch, member: 0, place: Place::Host(workspace) })
            }
            Backend::Gpu(gpu) => {
                let (member, launch) = gpu.choose(&self.source, shape, self.shared.size)?;
                let (rank, limit) = (self.meeting.rank(), self.shared.limit);
                // No rank may spin while another allocates: both can wait for the device. So all
                // come to rest first, and none goes on before all have what they need.
                gpu.synchronize(rank)?;
                self.meeting.barrier("at rest")?;
                let workspace = self.meeting.share("workspace", || {
                    gpu.collect();
                    gpu.workspace(&self.source, member, launch)
                })?;
                let instance =
                    gpu.instance(&self.source, member, launch, rank, workspace, limit)?;
                self.meeting.barrier("prepared")?;
                Ok(Instance { launch, member, place: Place::Gpu(instance) })
            }
        }
    }

    /// The arguments as the host executor takes them.
    fn host_args<'a>(&self, args: &'a mut [Arg<'_>]) -> Result<RankArgs<'a>, Error> {
        let mut host = RankArgs::default();
        let mut buffer = 0;
        for ((_, param), arg) in self.source.kernel.params.iter().zip(args) {
            match (param.ty, arg) {
                (ParamType::Scalar, Arg::Scalar(value)) => host.scalars.push(*value),
                (ParamType::Tensor { .. }, Arg::Tensor(tensor)) => {
                    let id = BufferId::new(buffer);
                    buffer += 1;
                    match &mut tensor.data {
                        Data::Read(input) => host.inputs.push((id, *input)),
                        Data::Write(output) => host.outputs.push((id, reborrow(output))),
                        Data::Device(_) => {}
                    }
                }
                (ParamType::Scalar | ParamType::Tensor { .. }, _) => {}
            }
        }
        Ok(host)
    }
}

impl Source {
    fn new(
        definition: &'static Definition,
        schedule: Option<&Schedule>,
        host: bool,
    ) -> Result<Source, Error> {
        let kernel = definition.kernel()?;
        let usage = usage::infer(&kernel)?;
        let known = (definition.schedules)();
        let mut family = Vec::new();
        if host {
            let schedule = schedule.unwrap_or(&known[0]).clone().target(Target::Host);
            let verified = verify(lower(&kernel, &schedule)?)?;
            family.push(Member { schedule, verified, image: None });
        } else {
            for (index, compiled) in known.iter().enumerate() {
                let Some(image) = image_for(definition, index) else { continue };
                let Some(wanted) = matching(compiled, schedule) else { continue };
                if image.fingerprint != fingerprint::of_program(&lower(&kernel, compiled)?) {
                    return Err(Error::StaleImage { kernel: definition.name.into() });
                }
                let verified = verify(lower(&kernel, &wanted)?)?;
                family.push(Member { schedule: wanted, verified, image: Some(image) });
            }
        }
        if family.is_empty() {
            let wanted = schedule.unwrap_or(&known[0]);
            let list: Vec<_> = definition
                .images
                .iter()
                .map(|image| format!("({})", known[image.schedule]))
                .collect();
            return Err(Error::NotCompiled {
                kernel: definition.name.into(),
                schedule: wanted.to_string(),
                known: if list.is_empty() { "nothing".into() } else { list.join(", ") },
            });
        }
        Ok(Source { definition, kernel, usage, family })
    }
}

fn image_for(definition: &'static Definition, schedule: usize) -> Option<&'static Image> {
    definition.images.iter().find(|image| image.schedule == schedule)
}

/// `wanted` (or the compiled schedule itself) where the compiled machine code serves it: order,
/// chunks and CTAs are read at run time, the rest is compiled in.
fn matching(compiled: &Schedule, wanted: Option<&Schedule>) -> Option<Schedule> {
    let Some(wanted) = wanted else { return Some(compiled.clone()) };
    let serves = compiled.target == wanted.target
        && compiled.tile == wanted.tile
        && compiled.stages == wanted.stages
        && compiled.consumers == wanted.consumers
        && compiled.transport == wanted.transport;
    serves.then(|| wanted.clone())
}

/// A user's order that is no permutation, as a broken rule.
pub(crate) fn rejected_order(error: OrderError) -> Error {
    Error::Rejected(
        Diagnostic::new(Rule::OrderNotPermutation, Span::UNKNOWN, error.to_string()).into(),
    )
}

fn describe(definition: &Definition, schedule: Option<&Schedule>) -> String {
    match schedule {
        Some(schedule) => format!("`{}` ({schedule})", definition.name),
        None => format!("`{}`", definition.name),
    }
}

fn limit(dim: &'static str, value: usize) -> Result<u32, Error> {
    match u32::try_from(value) {
        Ok(value) if value <= i32::MAX as u32 => Ok(value),
        _ => Err(Error::TooLarge { dim, value: value as u64 }),
    }
}
