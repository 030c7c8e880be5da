; What a kernel asks of the network, in terms of NCCL's device API (GIN) as `libnccl_device.bc` has it with a C ABI
; (nccl_device/gin.h, "C API"). Each is called by one thread.
;
; %comm is the address of an ncclDevComm in device memory, a window the one that the heap of this rank was registered
; as, on every rank alike. All go through context 0: signals belong to a context.
;
; Numbers: memory order 2 is acquire (cuda::memory_order); thread scope 10 is a thread, so that a put and a signal
; release at system scope what was written before, and 0 is the system; signal type 2 is an indexed one, and operation 1 adds.
; 60 are the back ends proxy, GDAKI, GPI and EFA, a bit each.

%team = type { i32, i32, i32 }
%storage = type { [16 x i8] }
%coop = type { %storage, ptr }
; ncclGin_C: 48 bytes in 2.32, here with room.
%gin = type { [16 x i64] }

declare void @ncclGin_C_init(ptr, i32, ptr, i32)
declare void @ncclCoopAnyInitThread(ptr)
declare %team @ncclTeamWorld(ptr)
declare void @ncclGinPut_v2(ptr, ptr byval(%team), i32, ptr, i64, ptr, i64, i64, i1 zeroext, i32, i32, i64, i1 zeroext, i32, ptr byval(%coop), i1 zeroext, ptr, i32, i32, i32)
declare void @ncclGinSignal_v3(ptr, ptr byval(%team), i32, i32, ptr, i64, i32, i1 zeroext, i32, i64, ptr byval(%coop), i1 zeroext, ptr, i32, i32, i32)
declare i64 @ncclGinReadSignal(ptr, i32, i32, i32)
declare i32 @ncclGinFlushTimeout(ptr, ptr byval(%coop), i32, i1 zeroext, ptr, i64)

; Puts %bytes bytes of the own window at %source to that of %peer at %target.
define void @flux_network_put(i64 %comm.at, i32 %peer, i64 %window.at, i64 %target, i64 %source, i64 %bytes) {
  %comm = inttoptr i64 %comm.at to ptr
  %window = inttoptr i64 %window.at to ptr
  %gin = alloca %gin, align 8
  %coop = alloca %coop, align 8
  %team = alloca %team, align 4
  call void @ncclGin_C_init(ptr %gin, i32 60, ptr %comm, i32 0)
  call void @ncclCoopAnyInitThread(ptr %coop)
  %world = call %team @ncclTeamWorld(ptr %comm)
  store %team %world, ptr %team
  call void @ncclGinPut_v2(ptr %gin, ptr byval(%team) %team, i32 %peer, ptr %window, i64 %target, ptr %window, i64 %source, i64 %bytes, i1 zeroext false, i32 0, i32 0, i64 0, i1 zeroext false, i32 0, ptr byval(%coop) %coop, i1 zeroext false, ptr null, i32 10, i32 0, i32 0)
  ret void
}

; Adds %by to signal %id of %peer, behind all that this thread has put there: a strong signal.
define void @flux_network_signal(i64 %comm.at, i32 %peer, i32 %id, i32 %by) {
  %comm = inttoptr i64 %comm.at to ptr
  %gin = alloca %gin, align 8
  %coop = alloca %coop, align 8
  %team = alloca %team, align 4
  call void @ncclGin_C_init(ptr %gin, i32 60, ptr %comm, i32 0)
  call void @ncclCoopAnyInitThread(ptr %coop)
  %world = call %team @ncclTeamWorld(ptr %comm)
  store %team %world, ptr %team
  %wide = zext i32 %by to i64
  call void @ncclGinSignal_v3(ptr %gin, ptr byval(%team) %team, i32 %peer, i32 2, ptr null, i64 0, i32 %id, i1 zeroext true, i32 1, i64 %wide, ptr byval(%coop) %coop, i1 zeroext false, ptr null, i32 10, i32 0, i32 0)
  ret void
}

; The low half of the own signal %id, acquired.
define i32 @flux_network_seen(i64 %comm.at, i32 %id) {
  %comm = inttoptr i64 %comm.at to ptr
  %gin = alloca %gin, align 8
  call void @ncclGin_C_init(ptr %gin, i32 60, ptr %comm, i32 0)
  %seen = call i64 @ncclGinReadSignal(ptr %gin, i32 %id, i32 32, i32 2)
  %low = trunc i64 %seen to i32
  ret i32 %low
}

; Waits until the sources of all puts of this context have been read; 0 where they have, within so many cycles.
define i32 @flux_network_flush(i64 %comm.at, i64 %cycles) {
  %comm = inttoptr i64 %comm.at to ptr
  %gin = alloca %gin, align 8
  %coop = alloca %coop, align 8
  call void @ncclGin_C_init(ptr %gin, i32 60, ptr %comm, i32 0)
  call void @ncclCoopAnyInitThread(ptr %coop)
  %outcome = call i32 @ncclGinFlushTimeout(ptr %gin, ptr byval(%coop) %coop, i32 2, i1 zeroext false, ptr null, i64 %cycles)
  ret i32 %outcome
}

; What a failed assertion of the library does. An external function would keep the assembler from giving registers
; to warps by role and from overlapping `wgmma`; what asserts is the use made of the library here.
declare void @llvm.trap()
define void @__assertfail(ptr %message, ptr %file, i32 %line, ptr %function, i64 %size) {
  call void @llvm.trap()
  unreachable
}
