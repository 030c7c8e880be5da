//! What a write overwrites: it comes behind what was there, and behind whoever read that.

use super::Walk;
use crate::check::memory::Access;
use crate::check::trace::Proxy;

impl Walk<'_, '_, '_> {
    /// Whether earlier writes of its launch give a read all it reads.
    fn is_covered(&self, read: &Access) -> bool {
        let memory = self.memory;
        let covers = |&near: &u32| {
            let mut writes = memory.writes(near).iter();
            writes.any(|write| write.epoch == read.epoch && write.moment() < read.moment())
        };
        let parts: Vec<u32> = memory.around(read.rect).filter(covers).collect();
        memory.gap(read.rect, &parts).is_none()
    }

    /// A write comes behind every access that the greedy run did before: of each rectangle the
    /// last write, which came behind earlier ones, and the reads since this one was last written.
    pub(super) fn write(&mut self, rect: u32) {
        let layout = self.scene.layout;
        let by = layout.writes_by(layout.actor(self.me.actor).engine, self.stmt());
        let (memory, me) = (self.memory, Access { rect, ..self.me_at() });
        let before = |all: &[Access], moment| all.partition_point(|a| a.moment() < moment);
        let own = memory.writes(rect);
        let last = before(own, me.moment()).checked_sub(1).map(|at| own[at].moment());
        for near in memory.around(rect) {
            let writes = memory.writes(near);
            let earlier = before(writes, me.moment());
            if let Some(write) = writes[..earlier].last()
                && !self.performed_before(write, by)
            {
                match by == Proxy::Async && self.performed_before(write, Proxy::Generic) {
                    true => self.report.unfenced_write(me, *write, self.me.wait),
                    false => self.report.unordered(*write, me),
                }
            }
            let reads = memory.reads(near);
            let since = last.map_or(0, |last| before(reads, last));
            for read in &reads[since..before(reads, me.moment())] {
                // A read of this launch that lacks this write is at fault itself.
                if self.is_before(read, by) || (read.epoch == me.epoch && !self.is_covered(read)) {
                    continue;
                }
                match by == Proxy::Async && self.reads_before(read) {
                    true => self.report.unfenced_write(me, *read, self.me.wait),
                    false => self.report.overwrites(me, *read),
                }
            }
        }
    }
}
