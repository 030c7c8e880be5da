//! A loaded kernel: checks a launch, prepares what a new shape needs, and hands it to the host
//! executor or to the GPU.

use crate::apart::{Apart, Spread};
use crate::definition::Definition;
use crate::error::Error;
use crate::gpu::GpuInstance;
use crate::meeting::{Meeting, Step};
use crate::problem;
use crate::processes;
use crate::source::{Member, Source, rejected, tiles};
use crate::tensor::{Arg, Data, reborrow};
use crate::world::{Backend, Rank, Shared};
use flux_ir::arena::Handle;
use flux_ir::eval::Launch;
use flux_ir::kernel::{ParamId, ParamType};
use flux_ir::program::BufferId;
use flux_ir::{Kernel, Schedule, Shape};
use flux_runtime::Stream;
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
    /// the other, where the own ones do not tell the shape. Lengths of shards stand behind them.
    instances: Mutex<HashMap<problem::Extents, Arc<Instance>>>,
    /// Where the memory of peers is not mapped.
    apart: Option<Box<Apart>>,
}

/// What one shape needs on one rank.
#[derive(Debug)]
struct Instance {
    launch: Launch,
    member: Arc<Member>,
    place: Place,
    /// Held while a launch is numbered and handed over: threads that launch at once queue.
    turn: Mutex<()>,
}

#[derive(Debug)]
enum Place {
    /// Nothing to do: the output has no element.
    Empty,
    Host(Arc<Workspace>),
    Gpu(Arc<GpuInstance>),
    Apart(Spread),
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
        let meeting = rank.meeting(rank.next_load()?);
        meeting.step(&load_step(definition, schedule), &problem::Extents::new())?;
        let host = matches!(rank.shared.backend, Backend::Host { .. });
        let source = meeting.share("source", || Source::new(definition, schedule, host))?;
        let shared = Arc::clone(&rank.shared);
        let solo = rank.solo();
        let apart = solo.map(|solo| Apart::new(definition, &source, schedule, &solo).map(Box::new));
        let apart = apart.transpose()?;
        Ok(Loaded { shared, meeting, source, instances: Mutex::default(), apart })
    }

    /// Makes what a launch with such arguments needs. All ranks meet where a shape is new.
    pub(crate) fn ready(&self, args: &[Arg<'_>]) -> Result<(), Error> {
        let extents = self.extents(args)?;
        match self.known(&extents) {
            Some(_) => Ok(()),
            None => self.prepare(extents, &[]).map(drop),
        }
    }

    /// Launches on `stream` from now on.
    pub(crate) fn follow(&self, stream: &Arc<Stream>) {
        if let Backend::Gpu(gpu) = &self.shared.backend {
            gpu.follow(self.meeting.rank(), stream);
        }
    }

    /// The kernel.
    pub(crate) fn kernel(&self) -> &Kernel {
        &self.source.kernel
    }

    /// Whether the arguments of all ranks fit together: even shards, or `rows` of each rank.
    pub(crate) fn fit(&self, rows: Option<&[usize]>, ranks: &[Vec<Arg<'_>>]) -> Result<(), Error> {
        let lengths = rows.map_or(Ok(Vec::new()), |rows| self.lengths(rows))?;
        let all = ranks.iter().map(|args| self.extents(args)).collect::<Result<Vec<_>, _>>()?;
        problem::shape(&self.source.kernel, &self.source.usage, &all, &lengths).map(drop)
    }

    /// Launches the kernel with arguments in the order of its parameters.
    ///
    /// # Errors
    /// Arguments that do not fit together, ranks that disagree, a stalled peer, one that recovers.
    pub fn launch(&self, args: &mut [Arg<'_>]) -> Result<(), Error> {
        self.launch_lengths(&[], args)
    }

    /// As [`Loaded::launch`], of ranks that own so many `rows` each, in the order of ranks.
    ///
    /// # Errors
    /// As [`Loaded::launch`]; rows of another number of ranks; a kernel whose tiles are of all rows.
    pub fn launch_with_rows(&self, rows: &[usize], args: &mut [Arg<'_>]) -> Result<(), Error> {
        match self.lengths(rows) {
            Ok(lengths) => self.launch_lengths(&lengths, args),
            Err(refused) => Err(self.refuse(rows, refused)),
        }
    }

    /// The rows of each rank, if they are those of this world.
    fn lengths(&self, rows: &[usize]) -> Result<Vec<u32>, Error> {
        let fit = |(rank, &rows): (usize, &usize)| match i32::try_from(rows) {
            Ok(fits) => Ok(fits.cast_unsigned()),
            Err(_) => {
                problem::fit(&format!("`launch_with_rows`: rows of rank {rank}"), rows as u64)
            }
        };
        let lengths = rows.iter().enumerate().map(fit).collect::<Result<Vec<u32>, Error>>()?;
        if lengths.len() == self.shared.size as usize {
            return Ok(lengths);
        }
        let (kernel, found) = (self.source.definition.name.into(), lengths.len());
        Err(Error::RowsOfRanks { kernel, world: self.shared.size, found })
    }

    /// Meets the ranks that are about to launch, which this one refuses to: they hear of it, and none is a
    /// launch ahead.
    fn refuse(&self, rows: &[usize], refused: Error) -> Error {
        let Shared { session, members, .. } = &*self.shared;
        let name = self.source.definition.name;
        if let Ok(_launching) = session.launch(members, self.meeting.rank(), name) {
            // What is wrong with the own rows says more than that other ranks have others.
            let _ = self.meeting.step(&launch_step(name, rows), &problem::Extents::new());
        }
        refused
    }

    /// Launches with shards of these lengths, or with even ones where there is none.
    fn launch_lengths(&self, lengths: &[u32], args: &mut [Arg<'_>]) -> Result<(), Error> {
        let Shared { session, members, .. } = &*self.shared;
        let rank = self.meeting.rank();
        let _launching = session.launch(members, rank, self.source.definition.name)?;
        let extents = self.extents(args)?;
        let known = match self.source.rows_are_known {
            true if lengths.is_empty() => self.known(&extents),
            true => self.known(&key(extents.clone(), lengths)),
            false => None,
        };
        let instance = match known {
            Some(instance) => instance,
            None => self.prepare(extents, lengths)?,
        };
        let member = &*instance.member;
        let _turn = instance.turn.lock().unwrap_or_else(PoisonError::into_inner);
        match &instance.place {
            Place::Empty => Ok(()),
            Place::Host(workspace) => self.launch_on_host(member, instance.launch, workspace, args),
            Place::Gpu(instance) => match &self.shared.backend {
                Backend::Gpu(gpu) => instance.launch(gpu, &self.source, member, args),
                Backend::Host { .. } => Ok(()),
            },
            Place::Apart(spread) => match (&self.apart, &self.shared.backend) {
                (Some(apart), Backend::Gpu(gpu)) => {
                    apart.launch(spread, (gpu, rank), self.source.definition.name, args)
                }
                _ => Ok(()),
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
        let mut extents = Vec::with_capacity(args.len());
        for (index, arg) in args.iter().enumerate() {
            extents.push(match arg {
                Arg::Scalar(_) => [0, 0],
                Arg::Tensor(tensor) => {
                    if let Some([expected, found]) = self.misplaced(&tensor.data) {
                        let param = self.source.kernel.params[ParamId::new(index)].name.clone();
                        return Err(Error::WrongPlace { param, expected, found });
                    }
                    // Names are made only where they are told.
                    let fit = |what, extent: usize| match i32::try_from(extent) {
                        Ok(fits) => Ok(fits.cast_unsigned()),
                        Err(_) => {
                            let name = &self.source.kernel.params[ParamId::new(index)].name;
                            problem::fit(&format!("{what} of `{name}`"), extent as u64)
                        }
                    };
                    [fit("rows", tensor.rows)?, fit("columns", tensor.cols)?]
                }
            });
        }
        Ok(extents)
    }

    /// Where a tensor should lie and where it lies, unless that is where this rank computes.
    fn misplaced(&self, data: &Data<'_>) -> Option<[String; 2]> {
        match (&self.shared.backend, data) {
            (Backend::Host { .. }, Data::Device(_) | Data::Target(_)) => {
                Some(["the host".into(), "the GPU".into()])
            }
            (Backend::Gpu(_), Data::Read(_) | Data::Write(_)) => {
                Some(["the GPU".into(), "the host".into()])
            }
            (Backend::Gpu(gpu), Data::Device(tensor) | Data::Target(tensor)) => {
                let own = gpu.device(self.meeting.rank()).ordinal();
                let found = tensor.buffer().device().ordinal();
                (own != found).then(|| [own, found].map(|ordinal| format!("GPU {ordinal}")))
            }
            (Backend::Host { .. }, Data::Read(_) | Data::Write(_)) => None,
        }
    }

    /// Agrees with the other ranks on what is launched, and makes what a new shape needs.
    fn prepare(&self, extents: problem::Extents, lengths: &[u32]) -> Result<Arc<Instance>, Error> {
        let source = &self.source;
        let name = source.definition.name;
        let mut all = self.meeting.step(&launch_step(name, lengths), &extents)?;
        if let Backend::Gpu(gpu) = &self.shared.backend
            && gpu.passive().is_some()
        {
            if problem::exchanges(&source.kernel) {
                let problem = "passive peers play what is gathered and scattered, and exchange nothing: \
                               take ranks that are active";
                let (kernel, problem) = (name.into(), problem.into());
                return Err(Error::Unsupported { kernel, problem });
            }
            all = problem::among_passive(&source.kernel, &source.usage, &extents, self.shared.size);
        }
        let key = key(if source.rows_are_known { extents } else { all.concat() }, lengths);
        if let Some(instance) = self.known(&key) {
            return Ok(instance);
        }
        if let Backend::Gpu(gpu) = &self.shared.backend
            && gpu.is_capturing(self.meeting.rank())
        {
            let problem =
                "it has not been launched with these extents: a graph is captured once it has";
            return Err(Error::Unsupported { kernel: name.into(), problem: problem.into() });
        }
        let shape = problem::shape(&source.kernel, &source.usage, &all, lengths)?;
        let instance = if shape.m == 0 || shape.n == 0 {
            if let Some(output) = problem::kept_without_tiles(&source.kernel, &source.usage, shape)
            {
                let problem = format!(
                    "`{output}` keeps what is gathered, and m or n is 0: no tile is computed beside \
                     which that is done; `flux::kernels::all_gather` gathers alone"
                );
                return Err(Error::Unsupported { kernel: name.into(), problem });
            }
            let launch = Launch { shape, world: self.shared.size, ctas: 1 };
            let member = Arc::clone(&self.source.family[0]);
            Instance { launch, member, place: Place::Empty, turn: Mutex::default() }
        } else if shape.k == 0 {
            return Err(Error::EmptyReduction);
        } else {
            self.instance(shape, lengths)?
        };
        let instance = Arc::new(instance);
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.insert(key, Arc::clone(&instance));
        Ok(instance)
    }

    fn instance(&self, shape: Shape, lengths: &[u32]) -> Result<Instance, Error> {
        let of_lengths =
            |member: &Arc<Member>| member.with_lengths(self.source.definition, lengths);
        match &self.shared.backend {
            Backend::Host { ctas } => {
                let member = of_lengths(&self.source.family[0])?;
                let tiles = tiles(member.verified.program(), shape);
                // A CTA is a thread: no more of them than there are tiles.
                let ctas = member.schedule.ctas.unwrap_or(*ctas).min(tiles).max(1);
                let launch = Launch { shape, world: self.shared.size, ctas };
                let workspace = self.meeting.share("workspace", || {
                    let checked = member.verified.check_launch(launch);
                    checked.map_err(rejected(self.source.definition))?;
                    let Shared { session, members, joined, .. } = &*self.shared;
                    let verified = &member.verified;
                    let workspace = match joined {
                        None => Workspace::new(verified, launch)?,
                        Some(joined) => {
                            let met = (&self.meeting, members);
                            processes::workspace(joined, met, verified, launch)?
                        }
                    };
                    let workspace = Arc::new(workspace);
                    session.add(members, &workspace);
                    Ok(workspace)
                })?;
                let place = Place::Host(Arc::clone(&workspace));
                Ok(Instance { launch, member, place, turn: Mutex::default() })
            }
            Backend::Gpu(gpu) if let Some(apart) = &self.apart => {
                let member = Arc::clone(&self.source.family[0]);
                let launch = Launch { shape, world: self.shared.size, ctas: 1 };
                let place = (gpu, &self.meeting, &self.shared.members);
                let limit = self.shared.limit;
                let spread = apart.spread(&self.source, place, (shape, lengths), limit)?;
                Ok(Instance { launch, member, place: Place::Apart(spread), turn: Mutex::default() })
            }
            Backend::Gpu(gpu) => {
                let chosen = self.meeting.share("choice", || {
                    let (member, launch) = gpu.choose(&self.source, shape, self.shared.size)?;
                    Ok((of_lengths(&member)?, launch))
                })?;
                let (member, launch) = (Arc::clone(&chosen.0), chosen.1);
                if self.meeting.spans_processes() {
                    // Each has chosen for itself, from the same numbers.
                    let said = format!("{} {launch:?}", member.schedule);
                    let name = self.source.definition.name;
                    let what = format!("the schedule and the CTAs of `{name}`");
                    self.meeting.same(&what, said.into_bytes())?;
                }
                let (rank, limit) = (self.meeting.rank(), self.shared.limit);
                // No rank may spin while another allocates: both can wait for the device. So all
                // come to rest first, and none goes on before all have what they need.
                gpu.synchronize(rank)?;
                self.meeting.barrier("at rest")?;
                let workspace = self.meeting.share("workspace", || {
                    gpu.collect();
                    gpu.workspace(&self.source, &member, launch, &self.meeting)
                })?;
                let instance = gpu.instance(&self.source, &member, launch, rank, workspace, limit);
                let instance = self.meeting.together("prepared", instance)?;
                let place = Place::Gpu(instance);
                Ok(Instance { launch, member, place, turn: Mutex::default() })
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
                        Data::Device(_) | Data::Target(_) => {}
                    }
                }
                (ParamType::Scalar | ParamType::Tensor { .. }, _) => {}
            }
        }
        Ok(host)
    }
}

/// What an instance is found by: extents, and the lengths of shards where a launch has some.
fn key(mut extents: problem::Extents, lengths: &[u32]) -> problem::Extents {
    extents.extend(lengths.iter().map(|&rows| [rows, 0]));
    extents
}

/// Names what is launched.
fn launch_step<T: std::fmt::Debug>(name: &str, lengths: &[T]) -> Step {
    let text = match lengths {
        [] => format!("launch `{name}`"),
        lengths => format!("launch `{name}` over ranks of {lengths:?} rows"),
    };
    Step::new(text, &[])
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
