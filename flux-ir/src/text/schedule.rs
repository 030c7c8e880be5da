//! The text form of a schedule: what stands in `#[schedule(…)]`.

use super::cursor::{Cursor, Parsed};
use super::lex::Token;
use crate::diagnostic::Diagnostics;
use crate::element::Element;
use crate::schedule::{
    AllGather, AllReduce, Balance, Cache, Consumers, ReduceScatter, Schedule, Transport,
};
use crate::target::Target;
use std::str::FromStr;

impl FromStr for Schedule {
    type Err = Diagnostics;

    /// Reads what [`Display`](std::fmt::Display) writes: a target, then choices in any order. What
    /// is left out is as [`Schedule::for_target`] has it.
    fn from_str(text: &str) -> Result<Self, Diagnostics> {
        Ok(schedule(&mut Cursor::new(text)?)?)
    }
}

fn schedule(cursor: &mut Cursor) -> Parsed<Schedule> {
    let target = cursor.choice("a target", &Target::ALL, Target::name)?;
    let mut schedule = Schedule::for_target(target);
    let mut given = Vec::new();
    while cursor.take(",") {
        let Token::Word(name) = cursor.peek().clone() else {
            return cursor.unexpected("a choice such as `stages = 4`");
        };
        if given.contains(&name) {
            return cursor.error(format!("`{name}` is given twice"));
        }
        schedule = choice(cursor, &name, schedule)?;
        given.push(name);
    }
    cursor.end()?;
    Ok(schedule)
}

/// Reads one choice, the next word of which is `name`.
fn choice(cursor: &mut Cursor, name: &str, schedule: Schedule) -> Parsed<Schedule> {
    let position = cursor.position();
    cursor.bump();
    cursor.punct("=")?;
    Ok(match name {
        "tile" => {
            let [m, n, k] = cursor.numbers()?;
            schedule.tile(m, n, k)
        }
        "stages" => schedule.stages(cursor.u32()?),
        "consumers" => schedule.consumers(cursor.choice(name, &Consumers::ALL, Consumers::name)?),
        "split_k" => schedule.split_k(cursor.u32()?),
        "balance" => schedule.balance(cursor.choice(name, &Balance::ALL, Balance::name)?),
        "cache" => schedule.cache(cursor.choice(name, &Cache::ALL, Cache::name)?),
        "order" => schedule.order(cursor.order()?),
        "transport" => schedule.transport(cursor.choice(name, &Transport::ALL, Transport::name)?),
        "all_gather" => {
            schedule.all_gather(cursor.choice(name, &AllGather::ALL, AllGather::name)?)
        }
        "all_reduce" => {
            schedule.all_reduce(cursor.choice(name, &AllReduce::ALL, AllReduce::name)?)
        }
        "reduce_scatter" => schedule.reduce_scatter(cursor.choice(
            name,
            &ReduceScatter::ALL,
            ReduceScatter::name,
        )?),
        "partials" => schedule.partials(cursor.choice(name, &Element::ALL, Element::name)?),
        "chunk_rows" => schedule.chunk_rows(cursor.u32()?),
        "head" => {
            let [rows, copies] = cursor.numbers()?;
            schedule.head(rows, copies)
        }
        "tail" => {
            let [rows, slices] = cursor.numbers()?;
            schedule.tail(rows, slices)
        }
        "ctas" => schedule.ctas(cursor.u32()?),
        "jitter" => schedule.jitter(cursor.u32()?),
        "node" => schedule.node(cursor.u32()?),
        _ => return Cursor::error_at(position, format!("a schedule has no `{name}`")),
    })
}

#[cfg(test)]
mod tests {
    use crate::order::{Arrival, Departure, Order};
    use crate::schedule::{
        AllGather, AllReduce, Balance, Cache, Consumers, ReduceScatter, Schedule, Transport,
    };
    use crate::{Element, Target};

    /// Schedules of which each choice differs from its default in one at least.
    fn schedules() -> Vec<Schedule> {
        let base = Schedule::sm_90a();
        let mut all = vec![base.clone(), Schedule::host(), base.clone().target(Target::Host)];
        all.extend(Order::BUILT_IN.map(|order| base.clone().order(order)));
        all.push(base.clone().order(Order::Grouped(7)));
        all.push(base.clone().order(Order::Arrival(Arrival { chunk: 0, tail: 384, pace: 150 })));
        all.push(base.clone().order(Order::Departure(Departure { rows: 256, shards: 2 })));
        all.extend(Consumers::ALL.map(|consumers| base.clone().consumers(consumers)));
        all.extend(Balance::ALL.map(|balance| base.clone().balance(balance)));
        all.extend(Cache::ALL.map(|cache| base.clone().cache(cache)));
        all.extend(Transport::ALL.map(|transport| base.clone().transport(transport)));
        all.extend(AllGather::ALL.map(|way| base.clone().all_gather(way)));
        all.extend(AllReduce::ALL.map(|algorithm| base.clone().all_reduce(algorithm)));
        all.extend(ReduceScatter::ALL.map(|path| base.clone().reduce_scatter(path)));
        all.extend(Element::ALL.map(|element| base.clone().partials(element)));
        let counts = base.tile(64, 96, 32).stages(7).split_k(2).chunk_rows(100).ctas(9);
        all.push(counts.head(256, 2).tail(384, 4).jitter(30).node(8));
        all
    }

    #[test]
    fn every_schedule_parses_back() {
        for schedule in schedules() {
            let text = schedule.to_string();
            assert_eq!(text.parse(), Ok(schedule), "{text}");
        }
    }

    #[test]
    fn what_is_no_schedule_is_told_with_its_place() {
        for (text, told) in [
            ("", "expected a target"),
            ("sm_70", "expected a target (host, sm_90a), found `sm_70`"),
            ("sm_90a, stage = 4", "a schedule has no `stage`"),
            ("sm_90a, stages = 4, stages = 5", "`stages` is given twice"),
            ("sm_90a, tile = (1, 2)", "expected `,`"),
            ("sm_90a, transport = post", "expected transport (copy_engine"),
            ("sm_90a stages = 4", "expected the end"),
        ] {
            let error = text.parse::<Schedule>().expect_err(text).to_string();
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
