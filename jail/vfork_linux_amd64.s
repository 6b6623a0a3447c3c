#include "textflag.h"

// func vfork(flags uintptr, pidfd *int32) (child uintptr, errno unix.Errno)
//
// The child returns first, on the same stack, and its later calls write over the return
// address there. A register keeps it for the parent.
TEXT ·vfork(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ flags+0(FP), DI
	MOVQ $0, SI
	MOVQ pidfd+8(FP), DX
	MOVQ $0, R10
	MOVQ $0, R8
	MOVQ $0, R9
	MOVQ $56, AX // SYS_clone
	POPQ R12
	SYSCALL
	PUSHQ R12
	CMPQ AX, $0xfffffffffffff001
	JCC failed
	MOVQ AX, child+16(FP)
	MOVQ $0, errno+24(FP)
	RET
failed:
	NEGQ AX
	MOVQ $0, child+16(FP)
	MOVQ AX, errno+24(FP)
	RET
