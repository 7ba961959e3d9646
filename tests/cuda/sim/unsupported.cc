// The rest of what NVIDIA's library exports, so that any program links and loads. No CUDA header is included here: a function that only says
// "not supported" takes whatever arguments it gets.
#include "tests/cuda/sim/unsupported.h"

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

// clang-format off
#define SIM_UNSUPPORTED(_) \
  _(cudaArrayGetMemoryRequirements) _(cudaArrayGetPlane) _(cudaArrayGetSparseProperties) _(cudaCreateSurfaceObject)                      \
  _(cudaCreateTextureObject) _(cudaCtxResetPersistingL2Cache) _(cudaDestroyExternalMemory) _(cudaDestroyExternalSemaphore)               \
  _(cudaDestroySurfaceObject) _(cudaDestroyTextureObject) _(cudaDeviceFlushGPUDirectRDMAWrites) _(cudaDeviceGetCacheConfig)              \
  _(cudaDeviceGetGraphMemAttribute) _(cudaDeviceGetHostAtomicCapabilities) _(cudaDeviceGetNvSciSyncAttributes)                           \
  _(cudaDeviceGetP2PAtomicCapabilities) _(cudaDeviceGetSharedMemConfig) _(cudaDeviceGetTexture1DLinearMaxWidth)                          \
  _(cudaDeviceGraphMemTrim) _(cudaDeviceRegisterAsyncNotification) _(cudaDeviceSetCacheConfig) _(cudaDeviceSetGraphMemAttribute)         \
  _(cudaDeviceSetSharedMemConfig) _(cudaDeviceUnregisterAsyncNotification) _(cudaEGLStreamConsumerAcquireFrame)                          \
  _(cudaEGLStreamConsumerConnect) _(cudaEGLStreamConsumerConnectWithFlags) _(cudaEGLStreamConsumerDisconnect)                            \
  _(cudaEGLStreamConsumerReleaseFrame) _(cudaEGLStreamProducerConnect) _(cudaEGLStreamProducerDisconnect)                                \
  _(cudaEGLStreamProducerPresentFrame) _(cudaEGLStreamProducerReturnFrame) _(cudaEventCreateFromEGLSync)                                 \
  _(cudaExternalMemoryGetMappedBuffer) _(cudaExternalMemoryGetMappedMipmappedArray) _(cudaFuncGetAttributes) _(cudaFuncGetName)          \
  _(cudaFuncGetParamInfo) _(cudaFuncSetAttribute) _(cudaFuncSetCacheConfig) _(cudaFuncSetSharedMemConfig) _(cudaGLGetDevices)            \
  _(cudaGLMapBufferObject) _(cudaGLMapBufferObjectAsync) _(cudaGLRegisterBufferObject) _(cudaGLSetBufferObjectMapFlags)                  \
  _(cudaGLSetGLDevice) _(cudaGLUnmapBufferObject) _(cudaGLUnmapBufferObjectAsync) _(cudaGLUnregisterBufferObject) _(cudaGetChannelDesc)  \
  _(cudaGetExportTable) _(cudaGetFuncBySymbol) _(cudaGetKernel) _(cudaGetMipmappedArrayLevel) _(cudaGetSurfaceObjectResourceDesc)        \
  _(cudaGetSymbolAddress) _(cudaGetSymbolSize) _(cudaGetTextureObjectResourceDesc) _(cudaGetTextureObjectResourceViewDesc)               \
  _(cudaGetTextureObjectTextureDesc) _(cudaGraphAddChildGraphNode) _(cudaGraphAddDependencies) _(cudaGraphAddEmptyNode)                  \
  _(cudaGraphAddEventRecordNode) _(cudaGraphAddEventWaitNode) _(cudaGraphAddExternalSemaphoresSignalNode)                                \
  _(cudaGraphAddExternalSemaphoresWaitNode) _(cudaGraphAddHostNode) _(cudaGraphAddKernelNode) _(cudaGraphAddMemAllocNode)                \
  _(cudaGraphAddMemFreeNode) _(cudaGraphAddMemcpyNode) _(cudaGraphAddMemcpyNode1D) _(cudaGraphAddMemcpyNodeFromSymbol)                   \
  _(cudaGraphAddMemcpyNodeToSymbol) _(cudaGraphAddMemsetNode) _(cudaGraphAddNode) _(cudaGraphChildGraphNodeGetGraph) _(cudaGraphClone)   \
  _(cudaGraphConditionalHandleCreate) _(cudaGraphCreate) _(cudaGraphDebugDotPrint) _(cudaGraphDestroy) _(cudaGraphDestroyNode)           \
  _(cudaGraphEventRecordNodeGetEvent) _(cudaGraphEventRecordNodeSetEvent) _(cudaGraphEventWaitNodeGetEvent)                              \
  _(cudaGraphEventWaitNodeSetEvent) _(cudaGraphExecChildGraphNodeSetParams) _(cudaGraphExecDestroy)                                      \
  _(cudaGraphExecEventRecordNodeSetEvent) _(cudaGraphExecEventWaitNodeSetEvent) _(cudaGraphExecExternalSemaphoresSignalNodeSetParams)    \
  _(cudaGraphExecExternalSemaphoresWaitNodeSetParams) _(cudaGraphExecGetFlags) _(cudaGraphExecHostNodeSetParams)                         \
  _(cudaGraphExecKernelNodeSetParams) _(cudaGraphExecMemcpyNodeSetParams) _(cudaGraphExecMemcpyNodeSetParams1D)                          \
  _(cudaGraphExecMemcpyNodeSetParamsFromSymbol) _(cudaGraphExecMemcpyNodeSetParamsToSymbol) _(cudaGraphExecMemsetNodeSetParams)          \
  _(cudaGraphExecNodeSetParams) _(cudaGraphExecUpdate) _(cudaGraphExternalSemaphoresSignalNodeGetParams)                                 \
  _(cudaGraphExternalSemaphoresSignalNodeSetParams) _(cudaGraphExternalSemaphoresWaitNodeGetParams)                                      \
  _(cudaGraphExternalSemaphoresWaitNodeSetParams) _(cudaGraphGetEdges) _(cudaGraphGetNodes) _(cudaGraphGetRootNodes)                     \
  _(cudaGraphHostNodeGetParams) _(cudaGraphHostNodeSetParams) _(cudaGraphInstantiate) _(cudaGraphInstantiateWithFlags)                   \
  _(cudaGraphInstantiateWithParams) _(cudaGraphInstantiateWithParams_ptsz) _(cudaGraphKernelNodeCopyAttributes)                          \
  _(cudaGraphKernelNodeGetAttribute) _(cudaGraphKernelNodeGetParams) _(cudaGraphKernelNodeSetAttribute) _(cudaGraphKernelNodeSetParams)  \
  _(cudaGraphLaunch) _(cudaGraphLaunch_ptsz) _(cudaGraphMemAllocNodeGetParams) _(cudaGraphMemFreeNodeGetParams)                          \
  _(cudaGraphMemcpyNodeGetParams) _(cudaGraphMemcpyNodeSetParams) _(cudaGraphMemcpyNodeSetParams1D)                                      \
  _(cudaGraphMemcpyNodeSetParamsFromSymbol) _(cudaGraphMemcpyNodeSetParamsToSymbol) _(cudaGraphMemsetNodeGetParams)                      \
  _(cudaGraphMemsetNodeSetParams) _(cudaGraphNodeFindInClone) _(cudaGraphNodeGetDependencies) _(cudaGraphNodeGetDependentNodes)          \
  _(cudaGraphNodeGetEnabled) _(cudaGraphNodeGetType) _(cudaGraphNodeSetEnabled) _(cudaGraphNodeSetParams) _(cudaGraphReleaseUserObject)  \
  _(cudaGraphRemoveDependencies) _(cudaGraphRetainUserObject) _(cudaGraphUpload) _(cudaGraphUpload_ptsz)                                 \
  _(cudaGraphicsEGLRegisterImage) _(cudaGraphicsGLRegisterBuffer) _(cudaGraphicsGLRegisterImage) _(cudaGraphicsMapResources)             \
  _(cudaGraphicsResourceGetMappedEglFrame) _(cudaGraphicsResourceGetMappedMipmappedArray) _(cudaGraphicsResourceGetMappedPointer)        \
  _(cudaGraphicsResourceSetMapFlags) _(cudaGraphicsSubResourceGetMappedArray) _(cudaGraphicsUnmapResources)                              \
  _(cudaGraphicsUnregisterResource) _(cudaGraphicsVDPAURegisterOutputSurface) _(cudaGraphicsVDPAURegisterVideoSurface)                   \
  _(cudaImportExternalMemory) _(cudaImportExternalSemaphore) _(cudaIpcGetEventHandle) _(cudaIpcOpenEventHandle)                          \
  _(cudaKernelSetAttributeForDevice) _(cudaLaunchCooperativeKernel) _(cudaLaunchCooperativeKernel_ptsz) _(cudaLaunchKernel)              \
  _(cudaLaunchKernelExC) _(cudaLaunchKernelExC_ptsz) _(cudaLaunchKernel_ptsz) _(cudaLibraryEnumerateKernels) _(cudaLibraryGetGlobal)     \
  _(cudaLibraryGetKernel) _(cudaLibraryGetKernelCount) _(cudaLibraryGetManaged) _(cudaLibraryGetUnifiedFunction) _(cudaLibraryLoadData)  \
  _(cudaLibraryLoadFromFile) _(cudaLibraryUnload) _(cudaLogsCurrent) _(cudaLogsDumpToFile) _(cudaLogsDumpToMemory)                       \
  _(cudaLogsRegisterCallback) _(cudaLogsUnregisterCallback) _(cudaMemAdvise) _(cudaMemDiscardAndPrefetchBatchAsync)                      \
  _(cudaMemDiscardAndPrefetchBatchAsync_ptsz) _(cudaMemDiscardBatchAsync) _(cudaMemDiscardBatchAsync_ptsz) _(cudaMemPoolExportPointer)   \
  _(cudaMemPoolExportToShareableHandle) _(cudaMemPoolImportFromShareableHandle) _(cudaMemPoolImportPointer) _(cudaMemPrefetchAsync)      \
  _(cudaMemPrefetchAsync_ptsz) _(cudaMemPrefetchBatchAsync) _(cudaMemPrefetchBatchAsync_ptsz) _(cudaMemRangeGetAttribute)                \
  _(cudaMemRangeGetAttributes) _(cudaMemcpy2DArrayToArray) _(cudaMemcpy2DArrayToArray_ptds) _(cudaMemcpy2DFromArray)                     \
  _(cudaMemcpy2DFromArrayAsync) _(cudaMemcpy2DFromArrayAsync_ptsz) _(cudaMemcpy2DFromArray_ptds) _(cudaMemcpy2DToArray)                  \
  _(cudaMemcpy2DToArrayAsync) _(cudaMemcpy2DToArrayAsync_ptsz) _(cudaMemcpy2DToArray_ptds) _(cudaMemcpy3D) _(cudaMemcpy3DAsync)          \
  _(cudaMemcpy3DAsync_ptsz) _(cudaMemcpy3DBatchAsync) _(cudaMemcpy3DBatchAsync_ptsz) _(cudaMemcpy3DPeer) _(cudaMemcpy3DPeerAsync)        \
  _(cudaMemcpy3DPeerAsync_ptsz) _(cudaMemcpy3DPeer_ptds) _(cudaMemcpy3D_ptds) _(cudaMemcpyArrayToArray) _(cudaMemcpyArrayToArray_ptds)   \
  _(cudaMemcpyBatchAsync) _(cudaMemcpyBatchAsync_ptsz) _(cudaMemcpyFromArray) _(cudaMemcpyFromArrayAsync)                                \
  _(cudaMemcpyFromArrayAsync_ptsz) _(cudaMemcpyFromArray_ptds) _(cudaMemcpyFromSymbol) _(cudaMemcpyFromSymbolAsync)                      \
  _(cudaMemcpyFromSymbolAsync_ptsz) _(cudaMemcpyFromSymbol_ptds) _(cudaMemcpyToArray) _(cudaMemcpyToArrayAsync)                          \
  _(cudaMemcpyToArrayAsync_ptsz) _(cudaMemcpyToArray_ptds) _(cudaMemcpyToSymbol) _(cudaMemcpyToSymbolAsync)                              \
  _(cudaMemcpyToSymbolAsync_ptsz) _(cudaMemcpyToSymbol_ptds) _(cudaMemset3D) _(cudaMemset3DAsync) _(cudaMemset3DAsync_ptsz)              \
  _(cudaMemset3D_ptds) _(cudaMipmappedArrayGetMemoryRequirements) _(cudaMipmappedArrayGetSparseProperties)                               \
  _(cudaOccupancyAvailableDynamicSMemPerBlock) _(cudaOccupancyMaxActiveBlocksPerMultiprocessor)                                          \
  _(cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) _(cudaOccupancyMaxActiveClusters) _(cudaOccupancyMaxPotentialClusterSize)    \
  _(cudaSignalExternalSemaphoresAsync) _(cudaSignalExternalSemaphoresAsync_ptsz) _(cudaStreamAttachMemAsync)                             \
  _(cudaStreamAttachMemAsync_ptsz) _(cudaStreamCopyAttributes) _(cudaStreamCopyAttributes_ptsz)                                          \
  _(cudaStreamGetAttribute) _(cudaStreamGetAttribute_ptsz) _(cudaStreamSetAttribute)                                                     \
  _(cudaStreamSetAttribute_ptsz) _(cudaStreamUpdateCaptureDependencies) _(cudaStreamUpdateCaptureDependencies_ptsz)                      \
  _(cudaUserObjectCreate) _(cudaUserObjectRelease) _(cudaUserObjectRetain) _(cudaVDPAUGetDevice) _(cudaVDPAUSetVDPAUDevice)              \
  _(cudaWaitExternalSemaphoresAsync) _(cudaWaitExternalSemaphoresAsync_ptsz)
// clang-format on

#define SIM_DEFINE(name) \
  SIM_EXPORT int name() { return sim::unsupported(#name); }
SIM_UNSUPPORTED(SIM_DEFINE)

SIM_EXPORT int cudaProfilerStart() { return 0; }
SIM_EXPORT int cudaProfilerStop() { return 0; }

// What nvcc puts into the initialisers of every program: they may run, the kernels may not.
SIM_EXPORT void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
SIM_EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
SIM_EXPORT void __cudaUnregisterFatBinary(void**) {}
SIM_EXPORT void __cudaRegisterFunction() {}
SIM_EXPORT void __cudaRegisterVar() {}
SIM_EXPORT void __cudaRegisterHostVar() {}
SIM_EXPORT void __cudaRegisterManagedVar() {}
SIM_EXPORT void __cudaRegisterUnifiedTable() {}
SIM_EXPORT char __cudaInitModule(void**) { return 1; }
SIM_EXPORT unsigned __cudaPushCallConfiguration() { return 0; }
SIM_EXPORT int __cudaPopCallConfiguration() { return sim::unsupported("__cudaPopCallConfiguration"); }
SIM_EXPORT int __cudaLaunchKernel() { return sim::unsupported("__cudaLaunchKernel"); }
SIM_EXPORT int __cudaLaunchKernel_ptsz() { return sim::unsupported("__cudaLaunchKernel_ptsz"); }
SIM_EXPORT int __cudaGetKernel() { return sim::unsupported("__cudaGetKernel"); }
SIM_EXPORT int __cudaGetProcAddress() { return sim::unsupported("__cudaGetProcAddress"); }
