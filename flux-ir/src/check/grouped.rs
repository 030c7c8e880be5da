//! Items sorted into numbered groups, in one list.

/// Items by the group they are of.
#[derive(Debug)]
pub(super) struct Grouped<T> {
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy> Grouped<T> {
    /// Groups items, in a stable order, by a number below `groups`.
    pub(super) fn new(groups: usize, items: &[T], group: impl Fn(&T) -> u32) -> Self {
        let mut starts = vec![0u32; groups + 1];
        for item in items {
            starts[group(item) as usize + 1] += 1;
        }
        for at in 0..groups {
            starts[at + 1] += starts[at];
        }
        let mut next = starts.clone();
        let mut order = vec![0u32; items.len()];
        for (index, item) in items.iter().enumerate() {
            let place = &mut next[group(item) as usize];
            order[*place as usize] = index as u32;
            *place += 1;
        }
        let items = order.into_iter().map(|index| items[index as usize]).collect();
        Grouped { starts, items }
    }

    /// The items of a group.
    pub(super) fn of(&self, group: u32) -> &[T] {
        let group = group as usize;
        &self.items[self.starts[group] as usize..self.starts[group + 1] as usize]
    }

    /// Sorts the items of each group.
    pub(super) fn sort_each<K: Ord>(&mut self, key: impl Fn(&T) -> K) {
        for bounds in self.starts.windows(2) {
            let group = &mut self.items[bounds[0] as usize..bounds[1] as usize];
            group.sort_unstable_by_key(&key);
        }
    }

    /// The same groups, of what `change` makes of each item.
    pub(super) fn map<U>(self, change: impl Fn(T) -> U) -> Grouped<U> {
        Grouped { starts: self.starts, items: self.items.into_iter().map(change).collect() }
    }
}
