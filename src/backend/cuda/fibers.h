// Cooperative threads of one operating-system thread: each has a stack of its own and runs until it
// yields. What the emulator of CUDA blocks is made of.
#pragma once
#include <functional>
#include <memory>

namespace tessera {

class Fibers {
 public:
  // `body` is run by every fiber with its number. An exception that leaves it ends the fiber and is
  // thrown by resume(). Fibers that have not ended when this is destroyed are unwound: yield()
  // throws something of its own there, which `body` must let pass.
  Fibers(int count, std::function<void(int)> body);
  ~Fibers();

  // Runs a fiber until it yields or ends. Not to be called by a fiber.
  void resume(int fiber);
  bool ended(int fiber) const;
  // Back to who resumed the running fiber.
  void yield();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
