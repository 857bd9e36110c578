// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/aead.h"

#include <dlfcn.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "peerlane/core/wire.h"
#include "peerlane/os/process.h"

namespace peerlane {

// Types come from the header, so a call that does not fit the library's does not compile.
struct LibCrypto {
  decltype(&::EVP_CIPHER_CTX_new) makeContext;
  decltype(&::EVP_CIPHER_CTX_free) freeContext;
  decltype(&::EVP_CIPHER_CTX_ctrl) control;
  decltype(&::EVP_CipherInit_ex) init;
  decltype(&::EVP_CipherUpdate) update;
  decltype(&::EVP_CipherFinal_ex) final;
  decltype(&::EVP_aes_256_gcm) aes256Gcm;
  decltype(&::EVP_chacha20_poly1305) chaCha20Poly1305;
};

namespace {

constexpr const char* kLibrary = "libcrypto.so.3";
constexpr size_t kNonceBytes = 12;

struct Loaded {
  LibCrypto crypto{};
  std::string problem;    // empty: all is there
  bool isShared = false;  // the program had it before
  const uint64_t forks = forkGeneration();
};

const Loaded& loadedOnce();

// Of a library that the program uses, too.
constinit std::atomic<bool> isOver{false};
constinit std::atomic<uint32_t> users{0};

// A call takes microseconds. A thread that stands in one for longer is no reason not to end.
constexpr std::chrono::seconds kLongestCall{2};

// By exit(), before the library cleans itself up. Not in a forked child, whose parent's other
// threads left nothing behind but their count.
void endUse() {
  sayGoodbyes();
  isOver.store(true, std::memory_order_seq_cst);  // partner: CryptoUse
  if (loadedOnce().forks != forkGeneration()) return;
  const auto deadline = std::chrono::steady_clock::now() + kLongestCall;
  while (users.load(std::memory_order_seq_cst) != 0 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
}

Loaded load() {
  Loaded loaded;
  if (void* const programs = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
    loaded.isShared = true;
    ::dlclose(programs);
  }
  // Bound to its own symbols, whatever else is in the program, and never let go of: where the
  // program initialised it, it has registered functions that run at exit.
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    loaded.problem = ::dlerror();
    return loaded;
  }
  const auto find = [&](const char* name, auto& function) {
    void* const found = ::dlsym(library, name);
    if (found == nullptr && loaded.problem.empty())
      loaded.problem = std::string(kLibrary) + " has no " + name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find("EVP_CIPHER_CTX_new", loaded.crypto.makeContext);
  find("EVP_CIPHER_CTX_free", loaded.crypto.freeContext);
  find("EVP_CIPHER_CTX_ctrl", loaded.crypto.control);
  find("EVP_CipherInit_ex", loaded.crypto.init);
  find("EVP_CipherUpdate", loaded.crypto.update);
  find("EVP_CipherFinal_ex", loaded.crypto.final);
  find("EVP_aes_256_gcm", loaded.crypto.aes256Gcm);
  find("EVP_chacha20_poly1305", loaded.crypto.chaCha20Poly1305);
  decltype(&::OPENSSL_init_crypto) initialise = nullptr;
  find("OPENSSL_init_crypto", initialise);
  if (!loaded.problem.empty()) return loaded;
  // exit() runs while links still seal and open: the library must not clean itself up then. Too
  // late where the program has initialised it, so use ends before the functions that it registered.
  if (initialise(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1)
    loaded.problem = std::string(kLibrary) + " cannot be initialised";
  else if (loaded.isShared && std::atexit(endUse) != 0)
    loaded.problem = "no function can be registered for the end of the process";
  return loaded;
}

const Loaded& loadedOnce() {
  static const auto* const loaded = new Loaded(load());  // no destructor runs at exit
  return *loaded;
}

Result<const LibCrypto*> crypto() {
  const Loaded& loaded = loadedOnce();
  if (loaded.problem.empty()) return &loaded.crypto;
  return Status(Code::kNotSupported, "encryption needs OpenSSL's libcrypto: " + loaded.problem);
}

bool hasAesInstructions() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#else
  return false;
#endif
}

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

const char* aeadCipherName(AeadCipher cipher) {
  return cipher == AeadCipher::kAes256Gcm ? "AES-256-GCM" : "ChaCha20-Poly1305";
}

Result<uint8_t> aeadCiphersHere() {
  PEERLANE_RETURN_IF_ERROR(crypto().status());
  auto ciphers = static_cast<uint8_t>(AeadCipher::kChaCha20Poly1305);
  if (hasAesInstructions()) ciphers |= static_cast<uint8_t>(AeadCipher::kAes256Gcm);
  return ciphers;
}

// The count comes first, and then the look; in endUse() it is the other way round, so it either
// sees this call or has said before that it is over.
CryptoUse::CryptoUse() {
  if (!loadedOnce().isShared) return;
  users.fetch_add(1, std::memory_order_seq_cst);
  isCounted_ = true;
  isAllowed_ = !isOver.load(std::memory_order_seq_cst);
}

CryptoUse::~CryptoUse() {
  if (isCounted_) users.fetch_sub(1, std::memory_order_release);
}

struct Aead::State {
  const LibCrypto& crypto;
  const bool seals;
  EVP_CIPHER_CTX* const context;
  bool worked = true;  // of the message under way

  void check(int result) { worked = worked && result == 1; }
};

Aead::Aead(std::unique_ptr<State> state) : state_(std::move(state)) {}

// Wipes the key. Once use is over the key goes with the process.
Aead::~Aead() {
  const CryptoUse use;
  if (use.isAllowed()) state_->crypto.freeContext(state_->context);
}

Result<std::unique_ptr<Aead>> Aead::create(AeadCipher cipher, Use use, const KeyBytes& key) {
  PEERLANE_ASSIGN(const LibCrypto* const functions, crypto());
  EVP_CIPHER_CTX* const context = functions->makeContext();
  if (context == nullptr) return Status(Code::kOutOfMemory, "no memory for a cipher");
  std::unique_ptr<Aead> aead(
      new Aead(std::make_unique<State>(*functions, use == Use::kSeal, context)));
  const EVP_CIPHER* const kind =
      cipher == AeadCipher::kAes256Gcm ? functions->aes256Gcm() : functions->chaCha20Poly1305();
  if (functions->init(context, kind, nullptr, nullptr, nullptr, use == Use::kSeal ? 1 : 0) != 1)
    return Status(Code::kNotSupported,
                  std::string(kLibrary) + " refuses " + aeadCipherName(cipher));
  aead->setKey(key);
  return aead;
}

// Begins anew: a failure of the key shows at the end of the first message.
void Aead::setKey(const KeyBytes& key) {
  state_->worked = true;
  state_->check(
      state_->crypto.init(state_->context, nullptr, nullptr, octets(key.bytes()), nullptr, -1));
}

void Aead::begin(uint64_t number, std::span<const std::byte> header) {
  std::array<std::byte, kNonceBytes> nonce{};
  ByteWriter(nonce).u64(number);
  state_->check(state_->crypto.init(state_->context, nullptr, nullptr, nullptr, octets(nonce), -1));
  int written = 0;
  state_->check(state_->crypto.update(state_->context, nullptr, &written, octets(header),
                                      static_cast<int>(header.size())));
}

void Aead::add(std::span<const std::byte> bytes, std::byte* out) {
  int written = 0;
  state_->check(state_->crypto.update(state_->context, reinterpret_cast<unsigned char*>(out),
                                      &written, octets(bytes), static_cast<int>(bytes.size())));
}

bool Aead::seal(std::span<std::byte, kTagBytes> tag) {
  unsigned char none[kTagBytes];
  int written = 0;
  state_->check(state_->crypto.final(state_->context, none, &written));
  state_->check(state_->crypto.control(state_->context, EVP_CTRL_AEAD_GET_TAG,
                                       static_cast<int>(tag.size()), tag.data()));
  return state_->worked;
}

bool Aead::open(std::span<const std::byte, kTagBytes> tag) {
  unsigned char none[kTagBytes];
  int written = 0;
  std::array<std::byte, kTagBytes> copy;  // libcrypto takes it without const
  std::copy(tag.begin(), tag.end(), copy.begin());
  state_->check(state_->crypto.control(state_->context, EVP_CTRL_AEAD_SET_TAG,
                                       static_cast<int>(copy.size()), copy.data()));
  state_->check(state_->crypto.final(state_->context, none, &written));
  return state_->worked;
}

}  // namespace peerlane
