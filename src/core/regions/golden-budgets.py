"""Golden vectors of the division among regions: an exact integer reading of `budgets` in src/core/regions/fair_share.rs, written apart from
it. Amounts in millionths of a permit, times in microseconds, demands in millionths a second. The first 400 vectors are those of the division
over the whole window; those after it look ahead.

Run: python3 golden-budgets.py"""
import json, os, random
from math import isqrt
U = 1_000_000
LASTED, SLICES = 10 * U, 10


def waterlevel(L, lo, P, wt):
    """max-min: B_k = max(lo_k, min(P_k, level * wt_k)) whose sum is L."""
    R = len(P)
    pts = sorted({(lo[k], wt[k]) for k in range(R)} | {(P[k], wt[k]) for k in range(R)}, key=lambda t: (t[0] * U * U) // t[1])
    tot = lambda num, den: sum(max(lo[k], min(P[k], num * wt[k] // den)) for k in range(R))
    a, b = 0, len(pts) - 1
    while a < b:
        m = (a + b) // 2
        if tot(*pts[m]) >= L: b = m
        else: a = m + 1
    hi, lw = pts[a], pts[a - 1] if a else (0, 1)
    act = [k for k in range(R) if lo[k] * hi[1] < hi[0] * wt[k] and P[k] * lw[1] > lw[0] * wt[k]]
    fix = sum(max(lo[k], min(P[k], lw[0] * wt[k] // lw[1])) for k in range(R) if k not in act)
    den, num = sum(wt[k] for k in act), L - fix
    B = [max(lo[k], min(P[k], num * wt[k] // den)) if k in act else max(lo[k], min(P[k], lw[0] * wt[k] // lw[1])) for k in range(R)]
    d = L - sum(B)
    for k in range(R):
        if d == 0: break
        x = max(lo[k] - B[k], min(d, P[k] - B[k])); B[k] += x; d -= x
    return B


def slices(L, fading, whole, used, soon, B):
    """Each region keeps a slice beyond its use: of what is left while that is more than a tenth, else of what nobody will soon need."""
    usable, R = L - fading, len(B)
    if usable <= 0: return B
    up = lambda x: x if usable == L else -(-x * L // usable)
    if not whole: used, soon = [up(x) for x in used], [up(x) for x in soon]
    left, least = L - sum(used), up(U)
    roomy = whole and left > up(L // U // 10 * U)
    if fading: least = (-(-least // U) + 1) * U
    cut = whole and sum(soon) > L and (roomy or sum(soon[k] > used[k] for k in range(R)) > 1)
    unclaimed = max(L - sum(soon), 0)
    shared = left // SLICES if roomy and cut else min(unclaimed, left // SLICES) if roomy else unclaimed // SLICES
    s = max(shared // R // U * U, least)
    kept = [max(0 if cut else soon[k], used[k] + s) for k in range(R)]
    if sum(kept) > L: return B
    lacks = [max(0, used[k] + s - B[k]) for k in range(R)]
    B = [b + x for b, x in zip(B, lacks)]
    can = [max(0, B[k] - kept[k]) for k in range(R)]
    missing = left = sum(lacks)
    for turn in (0, 1):
        for k in range(R):
            room = max(0, B[k] - kept[k])
            due = missing * room // max(1, sum(can)) // U * U if turn == 0 else left
            x = min(due, room, left); B[k] -= x; left -= x
    assert left == 0
    return B


def budgets(Lt, st, en, delta, wt, rep, prev, z=1, u=U // 2, ahead=None, whole=False, fading=0):
    """Lt permits; rep[k] = None or (stamp, admitted, demand); prev[k] = budget before; ahead=None divides over the whole window."""
    R, L = len(wt), Lt * U
    c = max([st] + [r[0] + delta for r in rep if r])
    room = Lt - fading
    need = lambda x: x if room == Lt else -(-x * Lt // max(1, room))
    lo, soon, P = [], [], []
    for k in range(R):
        if not rep[k]:
            lo.append(0); soon.append(0); P.append(0); continue
        s, n, D = rep[k]
        x, f = (n * U, s) if s >= st else (0, st)
        asked = lambda t: D * max(0, t) // U
        more, before = asked(c - f if ahead is None else min(max(0, c - f), 2 * ahead)), prev[k] * U
        if whole: more, before = more // U * U, prev[k] * room * U // max(1, Lt)
        l = max(x, min(x + more, before))
        rest = asked(en - f)
        near = rest if ahead is None else min(rest, asked(ahead))
        far = rest if ahead is None else max(near, min(rest, x, asked(LASTED)))
        want = far + z * isqrt(far * U)
        if whole:
            step = lambda y: max(l, x + (y + U // 2) // U * U)
            budget = lambda y: -(-need(y) // U) * U if y > l else need(y)
            near, want = budget(step(near)), budget(step(want))
            lo.append(need(l)); soon.append(near); P.append(max(near, want))
        else:
            lo.append(l); soon.append(max(l, x + near)); P.append(max(l, x + want))
    if sum(lo) >= L: B = [x * L // sum(lo) for x in lo] if whole and fading else lo[:]
    else:
        if sum(P) <= L:
            x, W = L - sum(P), sum(wt); B = [P[k] + x * wt[k] // W for k in range(R)]; B[0] += L - sum(B)
        elif not whole: B = waterlevel(L, lo, P, wt)
        elif sum(soon) <= L: B = waterlevel(L, soon, P, wt)
        else: B = waterlevel(L, lo, soon, wt)
        if ahead is not None: B = slices(L, fading * U, whole, lo, soon, B)
    S = max(Lt, -(-sum(B) // U)); out, acc, last = [], 0, 0
    for k in range(R):
        acc += B[k]; hi = (acc + u) // U if k < R - 1 else S; hi = max(hi, last); out.append(hi - last); last = hi
    return out


def drawn(r, ahead):
    R = r.choice([2, 3, 5, 8] if ahead is None else [2, 3, 5, 8, 10])
    L = r.choice([1, 3, 7, 100, 1000, 100000] if ahead is None else [1, 4, 10, 100, 1000, 100000])
    W = r.choice([1, 60, 3600] if ahead is None else [1, 10, 60, 3600, 86400, 2678400]) * U
    st = 1_700_000_000 * U // W * W; now = st + r.randrange(W); delta = r.choice([20, 80, 150]) * 1000
    wt = [r.choice([1, 1, 1, 2, 5]) for _ in range(R)]
    rep = [None if r.random() < (.1 if ahead is None else .4) else (max(0, now - delta - r.randrange(2 * U)), r.randrange(L + 1) // R,
           int(r.choice([0, .01, .3, 1, 3, 10]) * r.random() * L * U * U / (W if ahead is None or r.random() < .5 else 60 * U))) for _ in range(R)]
    prev = [r.choice([L, L // R]) for _ in range(R)]
    fading = 0 if ahead is None or r.random() < .5 else r.randrange(L + 1)
    cut = max([st] + [x[0] + delta for x in rep if x])
    return dict(L=L, st=st, en=st + W, delta=delta, wt=wt, rep=rep, prev=prev, ahead=ahead, whole=ahead is not None and st + W - cut > ahead,
                fading=fading)


if __name__ == '__main__':
    r, gold = random.Random(1), []
    for t in range(400): gold.append(drawn(r, None))
    for t in range(200): gold.append(drawn(r, r.choice([1, 1, 1, 2]) * U))
    for g in gold:
        g['out'] = budgets(g['L'], g['st'], g['en'], g['delta'], g['wt'], g['rep'], g['prev'], ahead=g['ahead'],
                           whole=g['whole'], fading=g['fading'])
        assert sum(g['out']) >= g['L'] and all(x >= 0 for x in g['out'])
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'golden-budgets.json')
    json.dump(gold, open(path, 'w'), separators=(',', ':'))
    print(len(gold), 'vectors;', sum(sum(g['out']) == g['L'] for g in gold), 'add up to the limit, the others to what is used')
