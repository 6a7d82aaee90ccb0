"""As many logarithms as the special-function units of a GPU give, for `gpu`'s ceilings."""

import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def logarithms(out, rounds, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write 16 · rounds logarithms of logarithms of each number."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = 1.5 + i * 1e-9
    for _ in range(rounds):
        for _ in tl.static_range(16):
            x = tl.inline_asm_elementwise(
                "{ .reg .f32 a; abs.f32 a, $1; lg2.approx.ftz.f32 $0, a; }",
                "=f,f",
                [x],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
    tl.store(out + i, x)
