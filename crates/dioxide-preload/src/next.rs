//! Interposed functions, and calls of the functions behind them.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next definition of a symbol after this library, most often libc's. `F` is its type.
pub struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    of: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    /// # Safety
    ///
    /// `F` is a function pointer of the symbol's type.
    pub const unsafe fn new(name: &'static CStr) -> Self {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Self { name, address: AtomicPtr::new(ptr::null_mut()), of: PhantomData }
    }

    /// Returns the function, if any library defines it.
    #[inline]
    pub fn find(&self) -> Option<F> {
        let address = self.address();
        // SAFETY: by the contract of `new` it has this type, which has the size of a pointer.
        (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
    }

    /// Returns the address of the function, or null.
    #[inline]
    pub fn address(&self) -> *mut c_void {
        let known = self.address.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: the name ends with a zero byte. RTLD_NEXT searches after this library.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// The result of a call whose function no other library defines.
pub trait Missing {
    /// Sets `errno` and returns the error.
    fn missing() -> Self;
}

macro_rules! missing_is_minus_one {
    ($($type:ty),*) => {$(
        impl Missing for $type {
            fn missing() -> Self {
                crate::set_errno(libc::ENOSYS);
                -1
            }
        }
    )*};
}

missing_is_minus_one!(i32, i64, isize);

impl Missing for () {
    fn missing() {}
}

impl Missing for libc::sighandler_t {
    fn missing() -> Self {
        crate::set_errno(libc::ENOSYS);
        libc::SIG_ERR
    }
}

impl<T> Missing for *mut T {
    fn missing() -> Self {
        crate::set_errno(libc::ENOSYS);
        ptr::null_mut()
    }
}

/// The name of a function as a C string.
macro_rules! c_name {
    ($name:ident) => {{
        const NAME: &str = concat!(stringify!($name), "\0");
        match std::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
            Ok(name) => name,
            Err(_) => unreachable!(),
        }
    }};
}

/// Defines functions that interpose those of the same names. In the body, `next` calls the function
/// behind.
///
/// Variadic functions, such as `open`, have fixed arguments here. All supported ABIs pass the first
/// few variadic arguments in the same registers. The function behind gets them unchanged.
///
/// A cancellation in the function behind unwinds the thread through here.
macro_rules! interpose {
    ($(|$next:ident| fn [$($name:ident),+] $args:tt -> $ret:ty $body:block)*) => {$(
        $($crate::next::interpose!(@one $next $name $args -> $ret $body);)+
    )*};
    (@one $next:ident $name:ident ($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block) => {
        /// Interposes the function of this name.
        ///
        /// # Safety
        ///
        /// As for that function.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            type Behind = unsafe extern "C-unwind" fn($($type),*) -> $ret;
            // SAFETY: the type is that of the function defined here.
            static NEXT: $crate::next::Next<Behind> = unsafe {
                $crate::next::Next::new($crate::next::c_name!($name))
            };
            let Some(next) = NEXT.find() else { return $crate::next::Missing::missing() };
            // SAFETY: the function behind has the contract of this one.
            let $next = move |$($arg: $type),*| unsafe { next($($arg),*) };
            $body
        }
    };
}

pub(crate) use {c_name, interpose};
