/* The text of replay.h, for print.c. */
        .section .rodata
        .globl  etch_minify_replay
        .hidden etch_minify_replay
etch_minify_replay:
        .incbin REPLAY_H
        .byte   0
        .section .note.GNU-stack, "", @progbits
