//! A loaded kernel: checks a launch, prepares what a new shape needs, and hands it to the host
//! executor or to the GPU.

use crate::definition::{Definition, Image};
use crate::error::Error;
use crate::gpu::GpuInstance;
use crate::meeting::{Meeting, Step};
use crate::problem;
use crate::tensor::{Arg, Data, reborrow};
use crate::world::{Backend, Rank, Shared};
use flux_ir::arena::Handle;
use flux_ir::check::{Verified, verify};
use flux_ir::eval::Launch;
use flux_ir::kernel::{ParamId, ParamType};
use flux_ir::lower::{lower, usage};
use flux_ir::order::OrderError;
use flux_ir::program::{BufferId, Engine, Program};
use flux_ir::{Diagnostic, Diagnostics, Kernel, Rule, Schedule, Shape, Span, Target, fingerprint};
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
    /// What was prepared, by the extents of this rank's tensors; by those of all ranks, one behind
    /// the other, where the own ones do not tell the shape.
    instances: Mutex<HashMap<problem::Extents, Arc<Instance>>>,
}

/// A kernel lowered and checked: made once for all ranks.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) definition: &'static Definition,
    pub(crate) kernel: Kernel,
    usage: usage::Usage,
    /// Whether the extents of one rank's tensors tell the shape.
    rows_are_known: bool,
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
        meeting.step(&load_step(definition, schedule), &problem::Extents::new())?;
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
        let known = if self.source.rows_are_known { self.known(&extents) } else { None };
        let instance = match known {
            Some(instance) => instance,
            None => self.prepare(extents)?,
        };
        let member = &self.source.family[instance.member];
        match &instance.place {
            Place::Empty => Ok(()),
            Place::Host(workspace) => self.launch_on_host(member, instance.launch, workspace, args),
            Place::Gpu(instance) => match &self.shared.backend {
                Backend::Gpu(gpu) => instance.launch(gpu, &self.source, member, args),
                Backend::Host { .. } => Ok(()),
            },
        }
    }

    fn launch_on_host(
        &self,
        member: &Member,
        launch: Launch,
        workspace: &Workspace,
        args: &mut [Arg<'_>],
    ) -> Result<(), Error> {
        let args = self.host_args(args)?;
        let (verified, limit) = (&member.verified, self.shared.limit);
        let rank = self.meeting.rank();
        // A launch whose arguments are refused does not count.
        let epoch = workspace.completed(rank)?.wrapping_add(1);
        flux_sim::launch_rank(verified, launch, rank, epoch, workspace, args, limit)
            .map_err(|error| self.source.host_error(member, error))
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
                        let place = |host| if host { "the host" } else { "the GPU" }.to_owned();
                        let param = self.source.kernel.params[ParamId::new(index)].name.clone();
                        let (expected, found) = (place(on_host), place(is_host));
                        return Err(Error::WrongPlace { param, expected, found });
                    }
                    let name = || &self.source.kernel.params[ParamId::new(index)].name;
                    let fit = |what, extent| {
                        problem::fit(&format!("{what} of `{}`", name()), extent as u64)
                    };
                    [fit("rows", tensor.rows)?, fit("columns", tensor.cols)?]
                }
            });
        }
        Ok(extents)
    }

    /// Agrees with the other ranks on what is launched, and makes what a new shape needs.
    fn prepare(&self, extents: problem::Extents) -> Result<Arc<Instance>, Error> {
        let source = &self.source;
        let name = source.definition.name;
        let all = self.meeting.step(&Step::new(format!("launch `{name}`"), &[]), &extents)?;
        let key = if source.rows_are_known { extents } else { all.concat() };
        if let Some(instance) = self.known(&key) {
            return Ok(instance);
        }
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
        instances.insert(key, Arc::clone(&instance));
        Ok(instance)
    }

    fn instance(&self, shape: Shape) -> Result<Instance, Error> {
        match &self.shared.backend {
            Backend::Host { ctas } => {
                let member = &self.source.family[0];
                let tiles = tiles(member.verified.program(), shape);
                // A CTA is a thread: no more of them than there are tiles.
                let ctas = member.schedule.ctas.unwrap_or(*ctas).min(tiles).max(1);
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
        if let Some(schedule) = schedule {
            counts(schedule)?;
        }
        let kernel = definition.kernel()?;
        let usage = usage::infer(&kernel)?;
        let rows_are_known = problem::rows_are_known(&kernel, &usage);
        let family = if host {
            vec![Member::on_host(definition, &kernel, schedule)?]
        } else {
            Member::compiled(definition, &kernel, schedule)?
        };
        Ok(Source { definition, kernel, usage, rows_are_known, family })
    }

    /// What went wrong on the host, told as a device tells it.
    fn host_error(&self, member: &Member, error: flux_sim::Error) -> Error {
        let kernel = self.definition.name.into();
        match error {
            flux_sim::Error::Stalled {
                rank,
                agent,
                cta,
                signal,
                slot,
                seen,
                wanted,
                span,
                waited,
            } => {
                let limit_ms = waited.as_millis() as u64;
                let mut agents = member.verified.program().agents.values();
                let engine = agents.find(|found| found.name == agent).map(|agent| agent.engine);
                if engine == Some(Engine::CopyEngine) {
                    // A copy engine waits for nothing but a peer's credit.
                    return Error::PeerBehind { rank, kernel, peer: slot, wanted, seen, limit_ms };
                }
                let file = self.definition.file.into();
                let (line, column) = (span.line, span.column);
                Error::Stalled {
                    rank,
                    kernel,
                    cta,
                    file,
                    line,
                    column,
                    signal,
                    slot,
                    seen,
                    wanted,
                    limit_ms,
                }
            }
            other => other.into(),
        }
    }
}

impl Member {
    /// The one member of a family on the host. A schedule that is given is checked for the target
    /// it names, so that a laptop refuses what a GPU would.
    fn on_host(
        definition: &'static Definition,
        kernel: &Kernel,
        schedule: Option<&Schedule>,
    ) -> Result<Member, Error> {
        let schedule = match schedule {
            Some(schedule) => schedule.clone(),
            None => default_schedule(definition).target(Target::Host),
        };
        let verified = verify(lower(kernel, &schedule)?)?;
        Ok(Member { schedule, verified, image: None })
    }

    /// Every member whose machine code is there and serves `schedule`.
    fn compiled(
        definition: &'static Definition,
        kernel: &Kernel,
        schedule: Option<&Schedule>,
    ) -> Result<Vec<Member>, Error> {
        let known = (definition.schedules)();
        let mut family = Vec::new();
        for (index, compiled) in known.iter().enumerate() {
            let Some(image) = image_for(definition, index) else { continue };
            let Some(wanted) = matching(compiled, schedule) else { continue };
            if image.fingerprint != fingerprint::of_program(&lower(kernel, compiled)?) {
                return Err(Error::StaleImage { kernel: definition.name.into() });
            }
            let verified = verify(lower(kernel, &wanted)?)?;
            family.push(Member { schedule: wanted, verified, image: Some(image) });
        }
        if family.is_empty() {
            // A schedule that cannot be compiled is not one to add.
            if let Some(schedule) = schedule {
                verify(lower(kernel, schedule)?)?;
            }
            return Err(not_compiled(definition, schedule, &known));
        }
        Ok(family)
    }
}

/// Tiles of the output.
pub(crate) fn tiles(program: &Program, shape: Shape) -> u32 {
    shape.m.div_ceil(program.tile.m).saturating_mul(shape.n.div_ceil(program.tile.n))
}

/// The first schedule of a kernel: the macro embeds one at least.
fn default_schedule(definition: &Definition) -> Schedule {
    (definition.schedules)().into_iter().next().unwrap_or_else(Schedule::sm_90a)
}

fn not_compiled(definition: &Definition, schedule: Option<&Schedule>, known: &[Schedule]) -> Error {
    let wanted = schedule.cloned().unwrap_or_else(|| default_schedule(definition));
    let images = definition.images.iter();
    let list: Vec<_> = images.map(|image| format!("({})", known[image.schedule])).collect();
    Error::NotCompiled {
        kernel: definition.name.into(),
        schedule: wanted.to_string(),
        known: if list.is_empty() { "nothing".into() } else { list.join(", ") },
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

/// Refuses what the attribute refuses and the checker never sees: counts that stay on the host.
fn counts(schedule: &Schedule) -> Result<(), Diagnostics> {
    let mut found = Diagnostics::new();
    for (name, count) in [("chunk_rows", schedule.chunk_rows), ("ctas", schedule.ctas)] {
        if count == Some(0) {
            let message = format!("expected a whole number above 0 for `{name}`, found `0`");
            found.push(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message));
        }
    }
    found.into_result(())
}

/// Names what is loaded; two kernels of one name differ by their file or their text.
fn load_step(definition: &Definition, schedule: Option<&Schedule>) -> Step {
    let name = definition.name;
    let text = match schedule {
        Some(schedule) => format!("load `{name}` ({schedule})"),
        None => format!("load `{name}`"),
    };
    Step::new(text, &[definition.file, definition.text])
}
