// Tells a torch without CUDA that there is one GPU: it has streams and events, and nothing to wait for.
// The tensors on it are Python objects (device.py).

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {

using namespace c10;

struct Guard : impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  static Device gpu() { return {DeviceType::CUDA, 0}; }
  static Stream stream() { return Stream(Stream::DEFAULT, gpu()); }
  Device exchangeDevice(Device) const override { return gpu(); }
  Device getDevice() const override { return gpu(); }
  Stream getStream(Device) const noexcept override { return stream(); }
  Stream getDefaultStream(Device) const override { return stream(); }
  Stream getNewStream(Device, int) const override { return stream(); }
  Stream exchangeStream(Stream) const noexcept override { return stream(); }
  void record(void**, const Stream&, DeviceIndex, EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

Guard guard;
impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, &guard);

} // namespace

namespace at {

struct CUDAHooks : CUDAHooksInterface {  // torch looks for this name
  explicit CUDAHooks(CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return 1; }
  int getNumGPUs() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex current_device() const override { return 0; }
};

REGISTER_CUDA_HOOKS(CUDAHooks);

} // namespace at
