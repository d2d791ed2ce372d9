//! Reads what a server tells in `INFO`.

use crate::store::redis::client::diagnostics::Memory;

/// What `INFO` tells of memory; of the keys, those in this database.
pub(in crate::store::redis) fn memory_of(info: &str, database: i64) -> Option<Memory> {
    let number = |name: &str| field(info, name)?.trim().parse::<u64>().ok();
    // "db0:keys=12,expires=12,avg_ttl=0"; absent where there are none.
    let keys = field(info, &format!("db{database}"))
        .and_then(|text| text.strip_prefix("keys=")?.split(',').next()?.parse().ok());
    Some(Memory {
        used: number("used_memory")?,
        startup: number("used_memory_startup").unwrap_or(0),
        max: number("maxmemory").unwrap_or(0),
        evicted: number("evicted_keys").unwrap_or(0),
        keys: keys.unwrap_or(0),
    })
}

/// The policy by which a server forgets counters when its memory is used up; `None` where it forgets none.
pub(in crate::store::redis) fn evicting<'i>(info: &'i str, memory: &Memory) -> Option<&'i str> {
    let policy = field(info, "maxmemory_policy")?.trim();
    (memory.max > 0 && policy != "noeviction").then_some(policy)
}

/// The value of one line of `INFO`.
pub(in crate::store::redis) fn field<'i>(info: &'i str, name: &str) -> Option<&'i str> {
    info.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_and_keys_are_those_of_the_own_database() {
        let info = "used_memory:1500\r\nmaxmemory:4000\r\nevicted_keys:7\r\ndb0:keys=9,expires=1,avg_ttl=0\r\ndb2:keys=12,expires=12,avg_ttl=0\r\n";
        let memory = Memory { used: 1_500, startup: 0, max: 4_000, evicted: 7, keys: 12 };
        assert_eq!(memory_of(info, 2), Some(memory));
        assert_eq!(memory_of(info, 3), Some(Memory { keys: 0, ..memory }));
        assert_eq!(memory_of("role:master", 0), None);
    }

    #[test]
    fn a_server_forgets_only_with_a_bound_and_a_policy_that_says_so() {
        let bounded = Memory { max: 4_000, ..Memory::default() };
        let policy = |name: &str| format!("maxmemory:4000\r\nmaxmemory_policy:{name}\r\n");
        assert_eq!(evicting(&policy("allkeys-lru"), &bounded), Some("allkeys-lru"));
        assert_eq!(evicting(&policy("noeviction"), &bounded), None);
        assert_eq!(evicting(&policy("volatile-ttl"), &Memory::default()), None);
        assert_eq!(evicting("role:master", &bounded), None);
    }
}
