//! The cases of the reference service, a row each: its rules, calls one after the other, and their answers.

/// Number, rules, and calls with their answers.
pub(crate) type Row = (u16, &'static [&'static str], &'static [(&'static str, &'static str)]);

/// The rules of requests, counts and modes, and what the two gateways push and ask, with the variables that
/// the service has by default. Windows are days, so that no call falls into the next one.
pub(crate) const ROWS: &[Row] = &[
    (1, &["k=v 5/day"], &[("[k=v]", "OK | OK 5 4")]),
    (2, &["k=v 5/day"], &[("[k=w]", "OK | OK - 0")]),
    (3, &["k 20/day", "k=v 30/day"], &[("[k=v]", "OK | OK 30 29")]),
    (4, &["k 20/day", "k=v 30/day"], &[("[k=w]", "OK | OK 20 19")]),
    (5, &["k 20/day"], &[("[k=w]", "OK | OK 20 19"), ("[k=x]", "OK | OK 20 19")]),
    (6, &["k 1/day", "k=v"], &[("[k=v]", "OK | OK - 0"), ("[k=v]", "OK | OK - 0"), ("[k=v]", "OK | OK - 0")]),
    (7, &["a=1", "  b 5/day"], &[("[a=1]", "OK | OK - 0")]),
    (8, &["a=1", "  b 5/day"], &[("[a=1, b=x]", "OK | OK 5 4")]),
    (9, &["a=1", "  b 5/day"], &[("[a=1, b=x, c=y]", "OK | OK - 0")]),
    (
        10,
        &["k5=v5 15/day", "  s=t 25/day"],
        &[("[k5=v5]", "OK | OK 15 14"), ("[k5=v5, s=t]", "OK | OK 25 24")],
    ),
    (11, &["a=1", "  b 5/day", "  b=x 10/day"], &[("[a=1, b=x]", "OK | OK 10 9")]),
    (12, &["a=1", "  b 5/day"], &[("[b=x, a=1]", "OK | OK - 0")]),
    (14, &["k=foo* 5/day"], &[("[k=foobar]", "OK | OK 5 4")]),
    (15, &["k=foo* 5/day"], &[("[k=foo]", "OK | OK 5 4")]),
    (
        16,
        &["k=a*c 5/day"],
        &[("[k=abbc]", "OK | OK 5 4"), ("[k=ac]", "OK | OK 5 4"), ("[k=abd]", "OK | OK - 0")],
    ),
    (17, &["k=a*a 5/day"], &[("[k=a]", "OK | OK - 0")]),
    (18, &["k=foo* 5/day", "k=foobar 9/day"], &[("[k=foobar]", "OK | OK 9 8")]),
    (19, &["k 2/day", "k=foo* 5/day"], &[("[k=foobar]", "OK | OK 5 4")]),
    (20, &["k=f* 5/day", "k=fo* 7/day"], &[("[k=foo]", "OK | OK 5 4")]),
    (21, &["k=foo* 5/day"], &[("[k=foo1]", "OK | OK 5 4"), ("[k=foo2]", "OK | OK 5 4")]),
    (
        22,
        &["k=foo* 5/day shared"],
        &[
            ("[k=foo1]", "OK | OK 5 4"),
            ("[k=foo1]", "OK | OK 5 3"),
            ("[k=foo1]", "OK | OK 5 2"),
            ("[k=foo2]", "OK | OK 5 1"),
            ("[k=foo2]", "OK | OK 5 0"),
            ("[k=foo2]", "OVER | OVER 5 0"),
        ],
    ),
    (
        23,
        &["k=top/* shared", "  k=in/* 3/day shared"],
        &[("[k=top/1, k=in/a]", "OK | OK 3 2"), ("[k=top/2, k=in/b]", "OK | OK 3 1")],
    ),
    (25, &["k=v 5/day name=own"], &[("[k=v limit=3/hour]", "OK | OK 3 2")]),
    (26, &["j 5/day"], &[("[k=v limit=3/hour]", "OK | OK 3 2")]),
    (
        28,
        &["k=v 5/day"],
        &[(
            "[k=v limit=3/unknown]",
            "InvalidArgument: descriptors[0].limit.unit: a limit needs a unit: SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
        )],
    ),
    (29, &["k=v 5/day"], &[("[k=v] [k=v]", "OK | OK 5 4 | OK 5 3")]),
    (
        30,
        &["k=v 5/day", "j=w 1/day"],
        &[("[k=v] [j=w]", "OK | OK 5 4 | OK 1 0"), ("[k=v] [j=w]", "OVER | OK 5 3 | OVER 1 0")],
    ),
    (31, &["k 5/day"], &[("[k=]", "OK | OK 5 4")]),
    (32, &["k 2/day"], &[("[k=v]", "OK | OK 2 1"), ("[k=v]", "OK | OK 2 0"), ("[k=v]", "OVER | OVER 2 0")]),
    (
        33,
        &["k 5/day"],
        &[
            ("[k=v] add=3", "OK | OK 5 2"),
            ("[k=v] add=3", "OVER | OVER 5 0"),
            // It stands at 6: one given back leaves 5, of which a check of nothing passes.
            ("[k=v h=1 negative]", "OK | OK 5 0"),
            ("[k=v h=1 negative]", "OK | OK 5 1"),
        ],
    ),
    (34, &["k 5/day"], &[("[k=v] add=6", "OVER | OVER 5 0"), ("[k=v] add=1", "OVER | OVER 5 0")]),
    (35, &["k 5/day"], &[("[k=v] add=0", "OK | OK 5 4")]),
    (36, &["k 5/day"], &[("[k=v h=0]", "OK | OK 5 5"), ("[k=v h=0]", "OK | OK 5 5")]),
    (37, &["k 5/day"], &[("[k=v h=5]", "OK | OK 5 0"), ("[k=v h=0]", "OK | OK 5 0")]),
    (38, &["k 5/day"], &[("[k=v h=6]", "OVER | OVER 5 0"), ("[k=v h=0]", "OVER | OVER 5 0")]),
    (39, &["k 5/day"], &[("[k=v h=2] add=4", "OK | OK 5 3")]),
    (40, &["k 9/day", "j 9/day"], &[("[k=v h=0] [j=w] add=4", "OK | OK 9 9 | OK 9 5")]),
    (41, &["k 0/day"], &[("[k=w h=0]", "OK | OK 0 0"), ("[k=v]", "OVER | OVER 0 0")]),
    (42, &["k 4294967295/second"], &[("[k=v]", "OK | OK 4294967295 4294967294")]),
    (43, &["k unlimited"], &[("[k=v]", "OK | OK - 4294967295"), ("[k=v]", "OK | OK - 4294967295")]),
    (47, &["k 5/Day", "j 5/DAY"], &[("[k=v] [j=v]", "OK | OK 5 4 | OK 5 4")]),
    (
        56,
        &["k 5/day"],
        &[
            ("[k=v h=4]", "OK | OK 5 1"),
            ("[k=v h=3 negative]", "OK | OK 5 4"),
            ("[k=v h=9 negative]", "OK | OK 5 5"),
        ],
    ),
    (57, &["k 1/day shadow"], &[("[k=v]", "OK | OK 1 0"), ("[k=v]", "OK | OK 1 0")]),
    (
        58,
        &["k 1/day shadow", "j 1/day"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 1 0"), ("[k=v] [j=v]", "OVER | OK 1 0 | OVER 1 0")],
    ),
    (
        60,
        &["k 1/day quota", "j 5/day quota"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 5 4"), ("[k=v] [j=v]", "OK | OVER 1 0 | OK 5 3")],
    ),
    (
        61,
        &["k 1/day quota", "j 1/day quota"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 1 0"), ("[k=v] [j=v]", "OVER | OVER 1 0 | OVER 1 0")],
    ),
    (
        62,
        &["k 1/day", "j 5/day quota"],
        &[("[k=v] [j=v]", "OK | OK 1 0 | OK 5 4"), ("[k=v] [j=v]", "OVER | OVER 1 0 | OK 5 3")],
    ),
    (
        63,
        &["k 5/day", "j 1/day quota"],
        &[("[k=v] [j=v]", "OK | OK 5 4 | OK 1 0"), ("[k=v] [j=v]", "OVER | OK 5 3 | OVER 1 0")],
    ),
    (
        64,
        &["k 5/day", "j 1/day quota", "i 5/day quota"],
        &[
            ("[k=v] [j=v] [i=v]", "OK | OK 5 4 | OK 1 0 | OK 5 4"),
            ("[k=v] [j=v] [i=v]", "OK | OK 5 3 | OVER 1 0 | OK 5 3"),
        ],
    ),
    (
        65,
        &["k 1/day quota"],
        &[("[k=v] [none=x]", "OK | OK 1 0 | OK - 0"), ("[k=v] [none=x]", "OVER | OVER 1 0 | OK - 0")],
    ),
    (68, &["k 1/day quota shadow"], &[("[k=v]", "OK | OK 1 0"), ("[k=v]", "OK | OK 1 0")]),
    (
        70,
        &["k 2/day quota", "j 1/day quota"],
        &[
            ("[k=v] [j=v]", "OK | OK 2 1 | OK 1 0"),
            ("[k=v] [j=v]", "OK | OK 2 0 | OVER 1 0"),
            ("[k=v] [j=v]", "OVER | OVER 2 0 | OVER 1 0"),
            // Counters of 3 and 3: two given back leave 1 and 1.
            ("[k=v h=2 negative] [j=v h=2 negative]", "OK | OK 2 1 | OK 1 0"),
        ],
    ),
    (
        71,
        &["k 2/day quota"],
        &[
            ("[k=v h=0]", "OK | OK 2 2"),
            ("[k=v h=1]", "OK | OK 2 1"),
            ("[k=v h=0]", "OK | OK 2 1"),
            ("[k=v h=1]", "OK | OK 2 0"),
            ("[k=v h=0]", "OK | OK 2 0"),
            ("[k=v h=1]", "OVER | OVER 2 0"),
            ("[k=v h=0]", "OVER | OVER 2 0"),
        ],
    ),
    (
        72,
        // Two requests a day of the one service and three of the other: each is charged after it was served,
        // and a check of nothing passes at the limit.
        &[
            "service=one 1/day quota metadata={\"service\":\"one\"}",
            "service=two 2/day quota metadata={\"service\":\"two\"}",
        ],
        &[
            ("[service=one h=0] [service=two h=0]", "OK | OK 1 1 | OK 2 2"),
            ("[service=one h=1]", "OK | OK 1 0"),
            ("[service=one h=0] [service=two h=0]", "OK | OK 1 0 | OK 2 2"),
            ("[service=one h=1]", "OVER | OVER 1 0"),
            ("[service=one h=0] [service=two h=0]", "OK | OVER 1 0 | OK 2 2"),
            ("[service=two h=3]", "OVER | OVER 2 0"),
            ("[service=one h=0] [service=two h=0]", "OVER | OVER 1 0 | OVER 2 0"),
        ],
    ),
    (
        73,
        &["a 5/day name=x", "b 9/day replaces=x"],
        &[("[a=1] [b=1]", "OK | OK - 0 | OK 9 8"), ("[a=1]", "OK | OK 5 4 x")],
    ),
    (74, &["a 5/day name=x", "b 9/day replaces=x"], &[("[a=1]", "OK | OK 5 4 x")]),
    (
        75,
        &["a 1/day name=x", "b unlimited replaces=x"],
        &[("[a=1] [b=1]", "OK | OK - 0 | OK - 4294967295"), ("[a=1] [b=1]", "OK | OK - 0 | OK - 4294967295")],
    ),
    (
        76,
        &["a 5/day name=x", "b 5/day name=x", "c 5/day replaces=x"],
        &[("[a=1] [b=1] [c=1]", "OK | OK - 0 | OK - 0 | OK 5 4")],
    ),
    (
        77,
        &["a 5/day name=x replaces=y", "b 5/day name=y replaces=x"],
        &[("[a=1] [b=1]", "OK | OK - 0 | OK - 0"), ("[a=1]", "OK | OK 5 4 x")],
    ),
    (78, &["a 5/day name=x", "b 5/day replaces=x"], &[("[a=1 limit=7/day] [b=1]", "OK | OK 7 6 | OK 5 4")]),
    (87, &["k 5/day name=n", "j 5/day"], &[("[k=v] [j=v]", "OK | OK 5 4 n | OK 5 4")]),
    (106, &["k 5/day"], &[]),
    (107, &["k 5/day"], &[("", "Unknown: rate limit descriptor list must not be empty")]),
    (
        131,
        &["route=route", "  rule-0-match--1=rule-0-match--1 3/hour"],
        &[("[route=route, rule-0-match--1=rule-0-match--1]", "OK | OK 3 2")],
    ),
    (
        132,
        &["route=route", "  rule-0-match--1=rule-0-match--1 5/day"],
        &[
            ("[route=route, rule-0-match--1=rule-0-match--1]", "OK | OK 5 4"),
            ("[route=other, rule-0-match--1=rule-0-match--1]", "OK | OK - 0"),
        ],
    ),
    (
        133,
        &["route=route", "  rule-0-match-0=rule-0-match-0 2/day"],
        &[
            ("[route=route, rule-0-match-0=rule-0-match-0]", "OK | OK 2 1"),
            ("[route=route]", "OK | OK - 0"),
            ("[route=route, rule-0-match-0=rule-0-match-0]", "OK | OK 2 0"),
            ("[route=route, rule-0-match-0=rule-0-match-0]", "OVER | OVER 2 0"),
        ],
    ),
    (
        134,
        &["route=route", "  rule-0-match-0 1/day"],
        &[
            ("[route=route, rule-0-match-0=ann]", "OK | OK 1 0"),
            ("[route=route, rule-0-match-0=bob]", "OK | OK 1 0"),
            ("[route=route, rule-0-match-0=ann]", "OVER | OVER 1 0"),
        ],
    ),
    (
        // Inverted or not: the gateway tells Envoy which requests have the descriptor, and the names are the
        // same.
        135,
        &["route=route", "  rule-0-match-0=rule-0-match-0 1/day", "  rule-1-match-0=rule-1-match-0 2/day"],
        &[
            ("[route=route, rule-1-match-0=rule-1-match-0]", "OK | OK 2 1"),
            ("[route=route, rule-0-match-0=rule-0-match-0]", "OK | OK 1 0"),
            ("[route=route, rule-0-match-0=rule-0-match-0]", "OVER | OVER 1 0"),
        ],
    ),
    (
        136,
        &["route=route", "  rule-0-match-0", "    rule-0-match-1=rule-0-match-1 1/day"],
        &[
            ("[route=route, rule-0-match-0=ann, rule-0-match-1=rule-0-match-1]", "OK | OK 1 0"),
            ("[route=route, rule-0-match-0=bob, rule-0-match-1=rule-0-match-1]", "OK | OK 1 0"),
            ("[route=route, rule-0-match-0=ann]", "OK | OK - 0"),
            ("[route=route, rule-0-match-0=ann, rule-0-match-1=rule-0-match-1]", "OVER | OVER 1 0"),
        ],
    ),
    (
        137,
        &["route=route", "  rule-0-match--1=rule-0-match--1 5/day", "  rule-1-match-0 1/day"],
        &[
            (
                "[route=route, rule-0-match--1=rule-0-match--1] [route=route, rule-1-match-0=ann]",
                "OK | OK 5 4 | OK 1 0",
            ),
            (
                "[route=route, rule-0-match--1=rule-0-match--1] [route=route, rule-1-match-0=ann]",
                "OVER | OK 5 3 | OVER 1 0",
            ),
        ],
    ),
    (
        // Several methods are one descriptor, by a pattern that Envoy matches.
        138,
        &["route=route", "  rule-0-method=rule-0-method", "    rule-0-path=rule-0-path 2/day"],
        &[
            ("[route=route, rule-0-method=rule-0-method, rule-0-path=rule-0-path]", "OK | OK 2 1"),
            ("[route=route, rule-0-method=rule-0-method]", "OK | OK - 0"),
            ("[route=route, rule-0-path=rule-0-path, rule-0-method=rule-0-method]", "OK | OK - 0"),
            ("[route=route, rule-0-method=rule-0-method, rule-0-path=rule-0-path]", "OK | OK 2 0"),
        ],
    ),
    (
        139,
        &["masked_remote_address=10.0.0.0/8", "  remote_address 5/day", "remote_address=10.0.0.0/8 7/day"],
        &[
            ("[masked_remote_address=10.0.0.0/8, remote_address=10.1.2.3]", "OK | OK 5 4"),
            ("[remote_address=10.0.0.0/8]", "OK | OK 7 6"),
            ("[remote_address=10.1.2.3]", "OK | OK - 0"),
        ],
    ),
    (
        140,
        &["route=route", "  masked_remote_address=10.0.0.0/8", "    remote_address 1/day"],
        &[
            ("[route=route, masked_remote_address=10.0.0.0/8, remote_address=10.1.1.1]", "OK | OK 1 0"),
            ("[route=route, masked_remote_address=10.0.0.0/8, remote_address=10.1.1.2]", "OK | OK 1 0"),
            ("[route=route, masked_remote_address=10.0.0.0/8, remote_address=10.1.1.1]", "OVER | OVER 1 0"),
            ("[route=route, masked_remote_address=11.0.0.0/8, remote_address=11.1.1.1]", "OK | OK - 0"),
        ],
    ),
    (
        // A header and, with the next number, a query parameter.
        141,
        &["route=route", "  rule-0-match-0=rule-0-match-0", "    rule-0-match-1 1/day"],
        &[
            ("[route=route, rule-0-match-0=rule-0-match-0, rule-0-match-1=red]", "OK | OK 1 0"),
            ("[route=route, rule-0-match-0=rule-0-match-0, rule-0-match-1=blue]", "OK | OK 1 0"),
            ("[route=route, rule-0-match-0=rule-0-match-0, rule-0-match-1=red]", "OVER | OVER 1 0"),
        ],
    ),
    (
        142,
        &[
            "route=route",
            "  rule-0-match-0=rule-0-match-0",
            "    rule-0-method=rule-0-method",
            "      rule-0-path=rule-0-path",
            "        masked_remote_address=10.0.0.0/8",
            "          rule-0-match-1 1/day",
        ],
        &[
            (
                "[route=route, rule-0-match-0=rule-0-match-0, rule-0-method=rule-0-method, rule-0-path=rule-0-path, masked_remote_address=10.0.0.0/8, rule-0-match-1=red]",
                "OK | OK 1 0",
            ),
            (
                "[route=route, rule-0-match-0=rule-0-match-0, rule-0-method=rule-0-method, rule-0-path=rule-0-path, masked_remote_address=10.0.0.0/8, rule-0-match-1=red]",
                "OVER | OVER 1 0",
            ),
            (
                "[route=route, masked_remote_address=10.0.0.0/8, rule-0-match-0=rule-0-match-0, rule-0-method=rule-0-method, rule-0-path=rule-0-path, rule-0-match-1=red]",
                "OK | OK - 0",
            ),
        ],
    ),
    (
        143,
        &["ns/policy/rule/0=ns/policy/rule/0", "  rule-0-match--1=rule-0-match--1 1/day"],
        &[
            ("[ns/policy/rule/0=ns/policy/rule/0, rule-0-match--1=rule-0-match--1]", "OK | OK 1 0"),
            ("[ns/policy/rule/0=ns/policy/rule/0, rule-0-match--1=rule-0-match--1]", "OVER | OVER 1 0"),
        ],
    ),
    (
        153,
        &[
            "backend_name=ns/name",
            "  model_name_override=m",
            "    rule-0-x-user|ann-match-0=rule-0-x-user|ann-match-0 1/day quota",
        ],
        &[(
            "[backend_name=ns/name, model_name_override=m, rule-0-x-user|ann-match-0=rule-0-x-user|ann-match-0]",
            "OK | OK 1 0",
        )],
    ),
    (
        154,
        &[
            "backend_name=ns/name",
            "  model_name_override=m",
            "    rule-0-x-user|ann-match-0=rule-0-x-user|ann-match-0 1/day quota",
            "    rule-1-x-team-match-0 1/day quota",
        ],
        &[
            ("[backend_name=ns/name, model_name_override=m, rule-1-x-team-match-0=red]", "OK | OK 1 0"),
            ("[backend_name=ns/name, model_name_override=m, rule-1-x-team-match-0=blue]", "OK | OK 1 0"),
            ("[backend_name=ns/name, model_name_override=m, rule-1-x-team-match-0=red]", "OVER | OVER 1 0"),
            (
                "[backend_name=ns/name, model_name_override=m, rule-0-x-user|ann-match-0=rule-0-x-user|ann-match-0]",
                "OK | OK 1 0",
            ),
        ],
    ),
    (
        155,
        &[
            "backend_name=ns/name",
            "  model_name_override=m",
            "    rule-0-x-team-match-0 1/day quota",
            "    rule-1-match--1=rule-1-match--1 5/day quota",
        ],
        &[
            ("[backend_name=ns/name, model_name_override=m, rule-1-match--1=rule-1-match--1]", "OK | OK 5 4"),
            (
                "[backend_name=ns/name, model_name_override=m, rule-0-x-team-match-0=red] [backend_name=ns/name, model_name_override=m, rule-1-match--1=rule-1-match--1]",
                "OK | OK 1 0 | OK 5 3",
            ),
            // Quotas: one that is over leaves the other.
            (
                "[backend_name=ns/name, model_name_override=m, rule-0-x-team-match-0=red] [backend_name=ns/name, model_name_override=m, rule-1-match--1=rule-1-match--1]",
                "OK | OVER 1 0 | OK 5 2",
            ),
        ],
    ),
    (
        156,
        &[
            "backend_name=ns/name",
            "  model_name_override=m 1/day quota",
            "  model_name_override=s 1/day quota shadow",
        ],
        &[
            ("[backend_name=ns/name, model_name_override=s]", "OK | OK 1 0"),
            ("[backend_name=ns/name, model_name_override=s]", "OK | OK 1 0"),
            ("[backend_name=ns/name, model_name_override=m]", "OK | OK 1 0"),
            ("[backend_name=ns/name, model_name_override=m]", "OVER | OVER 1 0"),
            // What is over, and a shadow rule that is too: it has turned to OK before quotas are counted.
            (
                "[backend_name=ns/name, model_name_override=m] [backend_name=ns/name, model_name_override=s]",
                "OK | OVER 1 0 | OK 1 0",
            ),
        ],
    ),
    (
        157,
        &["backend_name=ns/name", "  model_name_override=m 20/day quota"],
        &[("[backend_name=ns/name, model_name_override=m]", "OK | OK 20 19")],
    ),
    (
        // One at the request, and the tokens when the stream ends.
        158,
        &["backend_name=ns/name", "  model_name_override=m 20/day quota"],
        &[
            ("[backend_name=ns/name, model_name_override=m]", "OK | OK 20 19"),
            ("[backend_name=ns/name, model_name_override=m h=12]", "OK | OK 20 7"),
            ("[backend_name=ns/name, model_name_override=m]", "OK | OK 20 6"),
            ("[backend_name=ns/name, model_name_override=m h=12]", "OVER | OVER 20 0"),
            ("[backend_name=ns/name, model_name_override=m]", "OVER | OVER 20 0"),
        ],
    ),
    (
        159,
        &["k 20/day quota"],
        &[
            ("[k=v]", "OK | OK 20 19"),
            ("[k=v h=20]", "OVER | OVER 20 0"),
            ("[k=v]", "OVER | OVER 20 0"),
            // Of 22 that were counted, 22 are given back.
            ("[k=v h=21 negative]", "OK | OK 20 19"),
        ],
    ),
    (
        161,
        &["k 10/day"],
        &[
            ("[k=v h=0]", "OK | OK 10 10"),
            ("[k=v h=12]", "OVER | OVER 10 0"),
            ("[k=v h=0]", "OVER | OVER 10 0"),
        ],
    ),
    (
        162,
        &["k 0/day"],
        &[("[k=v h=0]", "OK | OK 0 0"), ("[k=v h=5]", "OVER | OVER 0 0"), ("[k=v h=0]", "OVER | OVER 0 0")],
    ),
    // Beyond the cases: what looks like a key of Tidegate's own is a text like any other.
    (
        163,
        &["api_key 2/day"],
        &[
            ("[api_key=tgk_a.b]", "OK | OK 2 1"),
            ("[api_key=tgk_a.b]", "OK | OK 2 0"),
            ("[api_key=tgk_a.b]", "OVER | OVER 2 0"),
            ("[api_key=tgk_abcdefGHI012]", "OK | OK 2 1"),
            ("[api_key=tgk_abcdefGHI012]", "OK | OK 2 0"),
            ("[api_key=tgk_abcdefGHI012]", "OVER | OVER 2 0"),
        ],
    ),
];
