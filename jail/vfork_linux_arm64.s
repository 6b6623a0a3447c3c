#include "textflag.h"

// func vfork(flags uintptr, pidfd *int32) (child uintptr, errno unix.Errno)
//
// The return address is in a register, for the child and for the parent.
TEXT ·vfork(SB), NOSPLIT, $0-32
	MOVD flags+0(FP), R0
	MOVD $0, R1
	MOVD pidfd+8(FP), R2
	MOVD $0, R3
	MOVD $0, R4
	MOVD $0, R5
	MOVD $220, R8 // SYS_clone
	SVC
	CMN $4095, R0
	BCS failed
	MOVD R0, child+16(FP)
	MOVD ZR, errno+24(FP)
	RET
failed:
	NEG R0, R0
	MOVD ZR, child+16(FP)
	MOVD R0, errno+24(FP)
	RET
