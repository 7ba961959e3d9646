// The interposed functions: each is a jump through its slot, so that arguments, hidden result pointers and exceptions pass as if
// nothing were there. A slot starts at a stub that looks the real function up on the first call; torchglue may store its own.
//
// initModule (the entry of torch/_C) always goes through the look-up: it is called once, and by whom decides what it is (see attach.cc).

#if defined(__x86_64__)

// Keeps every register that may carry an argument, calls koila_resolve(index, return address), restores, jumps to what it answered.
        .text
        .p2align 4
        .hidden koila_resolve
        .type   koila_lookup, @function
koila_lookup:
        .cfi_startproc
        .cfi_def_cfa_offset 16                  // the index lies above the return address
        pushq   %rbp
        .cfi_def_cfa_offset 24
        .cfi_offset %rbp, -24
        movq    %rsp, %rbp
        .cfi_def_cfa_register %rbp
        pushq   %rax
        pushq   %rdi
        pushq   %rsi
        pushq   %rdx
        pushq   %rcx
        pushq   %r8
        pushq   %r9
        pushq   %r10
        subq    $128, %rsp
        andq    $-16, %rsp
        movaps  %xmm0, (%rsp)
        movaps  %xmm1, 16(%rsp)
        movaps  %xmm2, 32(%rsp)
        movaps  %xmm3, 48(%rsp)
        movaps  %xmm4, 64(%rsp)
        movaps  %xmm5, 80(%rsp)
        movaps  %xmm6, 96(%rsp)
        movaps  %xmm7, 112(%rsp)
        movq    8(%rbp), %rdi
        movq    16(%rbp), %rsi
        call    koila_resolve
        movq    %rax, %r11
        movaps  (%rsp), %xmm0
        movaps  16(%rsp), %xmm1
        movaps  32(%rsp), %xmm2
        movaps  48(%rsp), %xmm3
        movaps  64(%rsp), %xmm4
        movaps  80(%rsp), %xmm5
        movaps  96(%rsp), %xmm6
        movaps  112(%rsp), %xmm7
        leaq    -64(%rbp), %rsp
        popq    %r10
        popq    %r9
        popq    %r8
        popq    %rcx
        popq    %rdx
        popq    %rsi
        popq    %rdi
        popq    %rax
        popq    %rbp
        .cfi_def_cfa %rsp, 16
        addq    $8, %rsp
        .cfi_def_cfa_offset 8
        jmp     *%r11
        .cfi_endproc
        .size   koila_lookup, . - koila_lookup

#define KOILA_STUB(label, index)        \
        .p2align 4;                     \
        .type label, @function;         \
label:                                  \
        .cfi_startproc;                 \
        endbr64;                        \
        pushq $index;                   \
        .cfi_adjust_cfa_offset 8;       \
        jmp koila_lookup;               \
        .cfi_endproc;                   \
        .size label, . - label;

#define KOILA_JUMP(name, index)         \
        .p2align 4;                     \
        .globl name;                    \
        .type name, @function;          \
name:                                   \
        .cfi_startproc;                 \
        endbr64;                        \
        jmp *(koila_slots + 8 * index)(%rip); \
        .cfi_endproc;                   \
        .size name, . - name;

#elif defined(__aarch64__)

        .text
        .p2align 4
        .hidden koila_resolve
        .type   koila_lookup, %function
koila_lookup:                                   // x17: the index
        .cfi_startproc
        stp     x29, x30, [sp, #-224]!
        .cfi_def_cfa_offset 224
        .cfi_offset 29, -224
        .cfi_offset 30, -216
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        stp     x2, x3, [sp, #32]
        stp     x4, x5, [sp, #48]
        stp     x6, x7, [sp, #64]
        str     x8, [sp, #80]
        stp     q0, q1, [sp, #96]
        stp     q2, q3, [sp, #128]
        stp     q4, q5, [sp, #160]
        stp     q6, q7, [sp, #192]
        mov     x0, x17
        mov     x1, x30
        bl      koila_resolve
        mov     x16, x0
        ldp     q6, q7, [sp, #192]
        ldp     q4, q5, [sp, #160]
        ldp     q2, q3, [sp, #128]
        ldp     q0, q1, [sp, #96]
        ldr     x8, [sp, #80]
        ldp     x6, x7, [sp, #64]
        ldp     x4, x5, [sp, #48]
        ldp     x2, x3, [sp, #32]
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #224
        .cfi_restore 29
        .cfi_restore 30
        .cfi_def_cfa_offset 0
        br      x16
        .cfi_endproc
        .size   koila_lookup, . - koila_lookup

#define KOILA_STUB(label, index)        \
        .p2align 4;                     \
        .type label, %function;         \
label:                                  \
        .cfi_startproc;                 \
        hint 34;                        \
        mov x17, index;                 \
        b koila_lookup;                 \
        .cfi_endproc;                   \
        .size label, . - label;

#define KOILA_JUMP(name, index)         \
        .p2align 4;                     \
        .globl name;                    \
        .type name, %function;          \
name:                                   \
        .cfi_startproc;                 \
        hint 34;                        \
        adrp x16, koila_slots + 8 * index; \
        ldr x16, [x16, :lo12:koila_slots + 8 * index]; \
        br x16;                         \
        .cfi_endproc;                   \
        .size name, . - name;

#else
#error "koila runs on x86-64 and aarch64"
#endif

#define KOILA_CAT_(a, b) a##b
#define KOILA_CAT(a, b) KOILA_CAT_(a, b)

#define KOILA_REDIRECT(index, name, library) KOILA_STUB(KOILA_CAT(koila_stub_, index), index) KOILA_JUMP(name, index)
#include "redirects.inc"
#undef KOILA_REDIRECT

        .globl  initModule
        KOILA_STUB(initModule, -1)

        .data
        .p2align 3
        .globl  koila_slots
        .hidden koila_slots
koila_slots:
#define KOILA_REDIRECT(index, name, library) .quad KOILA_CAT(koila_stub_, index);
#include "redirects.inc"
#undef KOILA_REDIRECT
        .size   koila_slots, . - koila_slots

// What the slots hold before their first call.
        .section .data.rel.ro, "aw"
        .p2align 3
        .globl  koila_stubs
        .hidden koila_stubs
koila_stubs:
#define KOILA_REDIRECT(index, name, library) .quad KOILA_CAT(koila_stub_, index);
#include "redirects.inc"
#undef KOILA_REDIRECT
        .size   koila_stubs, . - koila_stubs

        .section .note.GNU-stack, "", %progbits
