//! A kernel under the schedules that a world can run: lowered, checked, with its machine code.

use crate::definition::{Definition, Image};
use crate::error::Error;
use crate::problem;
use flux_ir::check::Verified;
use flux_ir::kernel::Distribution;
use flux_ir::lower::{checked, lower, usage};
use flux_ir::order::OrderError;
use flux_ir::program::{Engine, Program};
use flux_ir::{
    AllGather, Diagnostic, Diagnostics, Kernel, Rule, Schedule, Shape, Span, Target, Transport,
    fingerprint,
};
use std::sync::Arc;

/// A kernel lowered and checked: made once for all ranks.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) definition: &'static Definition,
    pub(crate) kernel: Kernel,
    pub(crate) usage: usage::Usage,
    /// Whether the extents of one rank's tensors tell the shape.
    pub(crate) rows_are_known: bool,
    pub(crate) family: Vec<Arc<Member>>,
    /// Whether a schedule was given at load time: then nothing of it is chosen anew.
    pub(crate) is_given: bool,
}

/// One way to run a kernel.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) schedule: Schedule,
    pub(crate) verified: Verified,
    pub(crate) image: Option<&'static Image>,
}

impl Source {
    /// Lowers and checks the kernel for threads of the host, or for a GPU.
    ///
    /// # Errors
    /// A schedule that breaks a rule, or for which no machine code is there.
    pub(crate) fn new(
        definition: &'static Definition,
        schedule: Option<&Schedule>,
        host: bool,
    ) -> Result<Source, Error> {
        if let Some(schedule) = schedule {
            counts(schedule).map_err(rejected(definition))?;
        }
        let kernel = definition.kernel()?;
        let usage = usage::infer(&kernel).map_err(rejected(definition))?;
        let rows_are_known = problem::rows_are_known(&kernel, &usage);
        let family = if host {
            vec![Arc::new(Member::on_host(definition, &kernel, schedule)?)]
        } else {
            Member::compiled(definition, &kernel, schedule)?
        };
        let is_given = schedule.is_some();
        Ok(Source { definition, kernel, usage, rows_are_known, family, is_given })
    }

    /// `member` under another order or other chunks, which its machine code serves as well.
    ///
    /// # Errors
    /// A schedule that breaks a rule.
    pub(crate) fn variant(
        &self,
        member: &Arc<Member>,
        schedule: &Schedule,
    ) -> Result<Arc<Member>, Error> {
        if member.schedule == *schedule {
            return Ok(Arc::clone(member));
        }
        let verified = lowered(&self.kernel, schedule).map_err(rejected(self.definition))?;
        let (schedule, image) = (schedule.clone(), member.image);
        Ok(Arc::new(Member { schedule, verified, image }))
    }

    /// What went wrong on the host, told as a device tells it.
    pub(crate) fn host_error(&self, member: &Member, error: flux_sim::Error) -> Error {
        let stall = match cause(error) {
            flux_sim::Error::Stalled(stall) => *stall,
            // What is lost says what it was lost by.
            other => return other.into(),
        };
        let flux_sim::Stall { rank, agent, cta, tile, signal, slot, seen, wanted, span, waited } =
            stall;
        let (kernel, limit_ms) = (self.definition.name.into(), waited.as_millis() as u64);
        let mut agents = member.verified.program().agents.values();
        let engine = agents.find(|found| found.name == agent).map(|agent| agent.engine);
        if engine == Some(Engine::CopyEngine) {
            // A copy engine waits for nothing but a peer's credit.
            return Error::PeerBehind { rank, kernel, peer: slot, wanted, seen, limit_ms };
        }
        let (file, line, column) = (self.definition.file, span.line, span.column);
        Error::Stalled {
            rank,
            kernel,
            cta,
            role: agent.into(),
            tile: tile.map(Box::new),
            file,
            line,
            column,
            signal: signal.into(),
            slot,
            seen,
            wanted,
            limit_ms,
        }
    }
}

/// The wait that failed first, where a wait did: one that gave up because of it was cut short, and may
/// have been answered since.
fn cause(error: flux_sim::Error) -> flux_sim::Error {
    let mut first = &error;
    while let flux_sim::Error::Abandoned { first: earlier, .. } = first {
        first = earlier;
    }
    match first {
        flux_sim::Error::Stalled(_) => first.clone(),
        _ => error,
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
        let verified = lowered(kernel, &schedule).map_err(rejected(definition))?;
        Ok(Member { schedule, verified, image: None })
    }

    /// The same for ranks that own so many rows each; itself where shards are even.
    ///
    /// # Errors
    /// Shards of the kernel are all of one length.
    pub(crate) fn with_lengths(
        self: &Arc<Self>,
        definition: &Definition,
        lengths: &[u32],
    ) -> Result<Arc<Member>, Error> {
        if lengths.is_empty() {
            return Ok(Arc::clone(self));
        }
        let verified = self.verified.with_lengths(lengths).map_err(rejected(definition))?;
        Ok(Arc::new(Member { schedule: self.schedule.clone(), verified, image: self.image }))
    }

    /// Every member whose machine code is there and serves `schedule`.
    fn compiled(
        definition: &'static Definition,
        kernel: &Kernel,
        schedule: Option<&Schedule>,
    ) -> Result<Vec<Arc<Member>>, Error> {
        let known = (definition.schedules)();
        let mut family = Vec::new();
        for (index, compiled) in known.iter().enumerate() {
            let Some(image) = image_for(definition, index) else { continue };
            let Some(wanted) = matching(kernel, compiled, schedule) else { continue };
            let program = lower(kernel, compiled).map_err(rejected(definition))?;
            if image.fingerprint != fingerprint::of_program(&program) {
                return Err(Error::StaleImage { kernel: definition.name.into() });
            }
            let verified = lowered(kernel, &wanted).map_err(rejected(definition))?;
            family.push(Arc::new(Member { schedule: wanted, verified, image: Some(image) }));
        }
        if family.is_empty() {
            // A schedule that cannot be compiled is not one to add.
            if let Some(schedule) = schedule {
                lowered(kernel, schedule).map_err(rejected(definition))?;
            }
            return Err(not_compiled(definition, schedule, &known));
        }
        Ok(family)
    }
}

/// Whether nothing runs beside the copies of a launch of `program`. Who scatters has copies that
/// follow the kernel, and peers who wait for it: nothing there can be awaited first.
pub(crate) fn copies_first(program: &Program, schedule: &Schedule) -> bool {
    schedule.transport == Some(Transport::CopyFirst) && !program.scatters()
}

impl Member {
    /// Whether nothing runs beside the copies of its launches.
    pub(crate) fn copies_first(&self) -> bool {
        copies_first(self.verified.program(), &self.schedule)
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

/// Why a kernel has no machine code under `schedule`, and what to do about it.
fn not_compiled(definition: &Definition, schedule: Option<&Schedule>, known: &[Schedule]) -> Error {
    let kernel = definition.name.to_owned();
    let mut wanted = schedule.cloned().unwrap_or_else(|| default_schedule(definition));
    if wanted.target == Target::Host {
        let problem = format!(
            "its schedule is for host, expected one for {0}: add `#[schedule({0})]` to the kernel",
            Target::Sm90a
        );
        return Error::Unsupported { kernel, problem };
    }
    let compiled = known.iter().any(|schedule| schedule.target != Target::Host);
    if definition.images.is_empty() && compiled {
        let problem = "flux was built without its feature `codegen`, so there is no machine code";
        return Error::Unsupported { kernel, problem: problem.into() };
    }
    // These are read at run time: any compiled schedule serves all of them.
    (wanted.order, wanted.chunk_rows, wanted.head, wanted.ctas) = (None, None, None, None);
    wanted.transport = wanted.transport.filter(|&transport| transport != Transport::CopyFirst);
    let images = definition.images.iter();
    let list: Vec<_> = images.map(|image| format!("({})", known[image.schedule])).collect();
    let known = if list.is_empty() { "nothing".into() } else { list.join(", ") };
    Error::NotCompiled { kernel, schedule: wanted.to_string(), known }
}

fn image_for(definition: &'static Definition, schedule: usize) -> Option<&'static Image> {
    definition.images.iter().find(|image| image.schedule == schedule)
}

/// `wanted` (or the compiled schedule itself) where the compiled machine code serves it: order,
/// chunks and CTAs are read at run time, also what a tail is, where the code waits for one, and how
/// copy engines move a gathered tensor. The rest is compiled in.
fn matching(kernel: &Kernel, compiled: &Schedule, wanted: Option<&Schedule>) -> Option<Schedule> {
    let Some(wanted) = wanted else { return Some(compiled.clone()) };
    let has = |wanted: Distribution| {
        let found = |param| kernel.tensor(param).is_some_and(|(found, ..)| found == wanted);
        kernel.params.handles().any(found)
    };
    let gathers = has(Distribution::Gathered) || has(Distribution::Exchanged);
    let (scatters, reduces) = (has(Distribution::Scattered), has(Distribution::Reduced));
    let algorithm = |schedule: &Schedule| schedule.all_reduce.unwrap_or_default();
    let path = |schedule: &Schedule| schedule.reduce_scatter.unwrap_or_default();
    let way = |schedule: &Schedule| schedule.all_gather.unwrap_or_default();
    let pushes = |schedule: &Schedule| schedule.transport == Some(Transport::Put);
    let bulk = |schedule: &Schedule| schedule.transport == Some(Transport::Tma);
    let stages = |schedule: &Schedule| schedule.transport == Some(Transport::CopyEngine);
    let serves = compiled.target == wanted.target
        && compiled.tile == wanted.tile
        && compiled.stages == wanted.stages
        && compiled.consumers == wanted.consumers
        && (scatters || compiled.tail.is_some() == wanted.tail.is_some())
        && compiled.split_k == wanted.split_k
        && compiled.balance == wanted.balance
        && compiled.cache == wanted.cache
        && compiled.jitter == wanted.jitter
        && compiled.node == wanted.node
        && (!reduces || algorithm(compiled) == algorithm(wanted))
        && (!scatters || path(compiled) == path(wanted))
        && compiled.partials == wanted.partials
        && (!gathers || pushes(compiled) == pushes(wanted))
        && bulk(compiled) == bulk(wanted)
        && way(compiled) == way(wanted)
        // Roles say themselves what they copy.
        && (way(wanted) == AllGather::Push || compiled.chunk_rows == wanted.chunk_rows)
        && (!scatters || stages(compiled) == stages(wanted));
    serves.then(|| wanted.clone())
}

/// Broken rules, as the error of a kernel.
pub(crate) fn rejected(definition: &Definition) -> impl Fn(Diagnostics) -> Error + '_ {
    |found| Error::Rejected { kernel: definition.name.into(), file: definition.file.into(), found }
}

/// A user's order that is no permutation, as a broken rule.
pub(crate) fn rejected_order(definition: &Definition) -> impl Fn(OrderError) -> Error + '_ {
    |error| {
        let rule = Rule::OrderNotPermutation;
        let found = Diagnostic::new(rule, Span::UNKNOWN, error.to_string());
        rejected(definition)(found.into())
    }
}

fn lowered(kernel: &Kernel, schedule: &Schedule) -> Result<Verified, Diagnostics> {
    checked(kernel, schedule)
}

/// Refuses what the attribute refuses and the checker never sees: counts that stay on the host.
fn counts(schedule: &Schedule) -> Result<(), Diagnostics> {
    let mut found = Diagnostics::new();
    let counts = [
        ("chunk_rows", schedule.chunk_rows),
        ("head", schedule.head.map(|head| head.rows.min(head.copies))),
        ("tail", schedule.tail.map(|tail| tail.rows.min(tail.slices))),
        ("ctas", schedule.ctas),
    ];
    for (name, count) in counts {
        if count == Some(0) {
            let message = format!("expected a whole number above 0 for `{name}`, found `0`");
            found.push(Diagnostic::new(Rule::Schedule, Span::UNKNOWN, message));
        }
    }
    found.into_result(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_of_a_sliced_tail_serves_every_tail_and_nothing_else() {
        let kernel = crate::kernels::ag_gemm::definition().kernel().unwrap();
        let serves = |compiled: &Schedule, wanted: Schedule| {
            matching(&kernel, compiled, Some(&wanted)).is_some()
        };
        let whole = Schedule::sm_90a();
        assert!(serves(&whole, whole.clone().chunk_rows(100).ctas(7)));
        assert!(serves(&whole, whole.clone().transport(Transport::CopyFirst)));
        assert!(!serves(&whole, whole.clone().tail(256, 4)));
        let sliced = whole.clone().chunk_rows(640).tail(384, 4);
        assert!(serves(&sliced, sliced.clone().chunk_rows(100).tail(7, 3)));
        assert!(!serves(&sliced, whole.clone()));
        let pushed = whole.clone().transport(Transport::Put);
        assert!(serves(&pushed, pushed.clone().chunk_rows(100)));
        assert!(!serves(&pushed, whole.clone()) && !serves(&whole, pushed.clone()));
        let bulk = whole.clone().transport(Transport::Tma);
        assert!(serves(&bulk, bulk.clone().chunk_rows(100)));
        assert!(!serves(&bulk, whole.clone()) && !serves(&whole, bulk.clone()));
        assert!(!serves(&bulk, pushed.clone()) && !serves(&pushed, bulk));
    }

    #[test]
    fn code_of_roles_serves_their_own_chunks_alone() {
        let kernel = crate::kernels::ag_gemm::definition().kernel().unwrap();
        let serves = |compiled: &Schedule, wanted: &Schedule| {
            matching(&kernel, compiled, Some(wanted)).is_some()
        };
        let pushed = Schedule::sm_90a();
        let [pulled, ring] =
            [AllGather::Pull, AllGather::Ring].map(|way| pushed.clone().all_gather(way));
        assert!(serves(&pushed, &pushed.clone().all_gather(AllGather::Push)));
        assert!(serves(&pulled, &pulled.clone().ctas(7)) && !serves(&pulled, &ring));
        assert!(!serves(&pulled, &pushed) && !serves(&pushed, &pulled));
        assert!(!serves(&pulled, &pulled.clone().chunk_rows(100)));
    }

    #[test]
    fn a_wait_that_was_cut_short_is_told_by_its_cause() {
        let source = Source::new(crate::kernels::ag_gemm::definition(), None, true).unwrap();
        let stall = |rank, seen| flux_sim::Stall {
            rank,
            agent: "gemm".into(),
            cta: 0,
            tile: None,
            signal: "a_arrived".into(),
            slot: 2,
            seen,
            wanted: 12,
            span: Span::new(3, 4),
            waited: std::time::Duration::from_millis(70),
        };
        let first = flux_sim::Error::Stalled(Box::new(stall(1, 5)));
        let abandoned = |first| flux_sim::Error::Abandoned {
            // Answered when nobody waited any more.
            stall: Box::new(stall(0, 12)),
            first: Box::new(first),
        };
        for error in [abandoned(first.clone()), abandoned(abandoned(first))] {
            let told = source.host_error(&source.family[0], error);
            let Error::Stalled { rank: 1, seen: 5, wanted: 12, .. } = told else {
                panic!("{told}")
            };
        }
        // What is no wait is told with what it ended.
        let other = abandoned(flux_sim::Error::PeerFailed { rank: 2 });
        let told = source.host_error(&source.family[0], other).to_string();
        assert!(told.contains("rank 2 failed"), "{told}");
    }

    #[test]
    fn code_that_stores_into_peers_memory_does_not_serve_copy_engines() {
        let kernel = crate::kernels::gemm_rs::definition().kernel().unwrap();
        let put = Schedule::sm_90a();
        let sent = put.clone().transport(Transport::CopyEngine);
        for (compiled, wanted) in [(&put, &sent), (&sent, &put)] {
            assert!(matching(&kernel, compiled, Some(wanted)).is_none());
            assert!(matching(&kernel, compiled, Some(compiled)).is_some());
        }
        assert!(matching(&kernel, &put, Some(&put.clone().transport(Transport::Put))).is_some());
        assert!(
            matching(&kernel, &sent, Some(&sent.clone().head(512, 4).chunk_rows(256))).is_some()
        );
    }
}
