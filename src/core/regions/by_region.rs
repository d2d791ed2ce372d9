//! Something for each region that has any, by [`RegionId`]: of fifty regions mostly three use a bucket.

use super::membership::RegionId;

/// A map from region to `T`.
#[derive(Debug, Clone)]
pub(super) struct ByRegion<T>(Vec<(RegionId, T)>);

impl<T> Default for ByRegion<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> ByRegion<T> {
    pub(super) fn get(&self, region: RegionId) -> Option<&T> {
        self.place(region).ok().and_then(|place| self.0.get(place)).map(|(_, value)| value)
    }

    pub(super) fn get_mut(&mut self, region: RegionId) -> Option<&mut T> {
        let place = self.place(region).ok()?;
        self.0.get_mut(place).map(|(_, value)| value)
    }

    /// Returns what the region has, made where it has nothing yet.
    pub(super) fn of(&mut self, region: RegionId) -> &mut T {
        let place = self.place(region).unwrap_or_else(|place| {
            // One by one: growing twofold would keep half of the room empty in a million buckets.
            self.0.reserve_exact(1);
            self.0.insert(place, (region, T::default()));
            place
        });
        &mut self.0[place].1
    }

    /// By region, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RegionId, &T)> {
        self.0.iter().map(|(region, value)| (*region, value))
    }

    /// The same, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (RegionId, &mut T)> {
        self.0.iter_mut().map(|(region, value)| (*region, value))
    }

    fn place(&self, region: RegionId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&region, |(region, _)| *region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_has_its_own_whatever_the_order() {
        let mut map = ByRegion::<u64>::default();
        for region in [49, 0, 7, 49] {
            *map.of(region) += 1 + region as u64;
        }
        assert_eq!(map.iter().collect::<Vec<_>>(), [(0, &1), (7, &8), (49, &100)]);
        assert_eq!((map.get(7), map.get(8)), (Some(&8), None));
        *map.get_mut(7).unwrap() = 3;
        assert_eq!(map.get(7), Some(&3));
    }
}
