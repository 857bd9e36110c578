// SPDX-License-Identifier: Apache-2.0
#include "peerlane/transport/tcp/aead.h"

#include <dlfcn.h>
#include <openssl/evp.h>

#include <array>
#include <string>

#include "peerlane/core/wire.h"

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
  std::string problem;  // empty: all is there
};

Loaded load() {
  Loaded loaded;
  // Bound to its own symbols, whatever else is in the program, and never let go of: it registers
  // functions that run at exit.
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

struct Aead::State {
  const LibCrypto& crypto;
  const bool seals;
  EVP_CIPHER_CTX* const context;
  bool worked = true;  // of the message under way

  void check(int result) { worked = worked && result == 1; }
};

Aead::Aead(std::unique_ptr<State> state) : state_(std::move(state)) {}

Aead::~Aead() {
  state_->crypto.freeContext(state_->context);  // wipes the key
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
